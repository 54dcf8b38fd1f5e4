"""Text sources: the documents of TFDS data sets, folders and files."""

from tf_sparse_attention.data.sources.text_source import TextSource, load_documents, open_source

__all__ = ["TextSource", "load_documents", "open_source"]
