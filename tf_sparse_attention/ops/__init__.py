"""Pure tensor functions, written with `keras.ops`. Import the modules: `from tf_sparse_attention.ops import masks`."""
