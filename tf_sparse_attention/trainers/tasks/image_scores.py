"""The scores of images, every byte once, and what TensorBoard shows of a model of them."""

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.tasks import byte_scores, image_samples
from tf_sparse_attention.trainers.tasks.parts import Request, Shown

NUM_SHOWN = 4  # images that are drawn, and that are completed, for TensorBoard


class Validation(byte_scores.Validation):
    """Scores the images of the validation split, and draws some; its data are uint8 (N, H, W, C)."""

    metric = "bits_per_dim"

    def make_batches(self, most: int | None) -> tsa.data.Batches:
        """Return the batches to score, of at most `most` images."""
        return tsa.data.image_evaluation_batches(self.data, self.task.codec, self.task.config.data.batch_size, most)

    def counts(self) -> dict[str, int]:
        """Returns the number of images."""
        return {"images": len(self.data)}

    def show(self) -> Shown:
        """Returns images of the model's own, completed ones, what a pixel looks at, and the use of clusters."""
        codec = self.task.codec
        first = np.asarray(self.data[:NUM_SHOWN])
        pictures = {"what a pixel looks at": image_samples.attention_picture(self.model, codec, first[0])}
        return self.show_health(codec.encode(first[0]), pictures | self._drawn(first))

    def _drawn(self, images):
        """Returns samples and completions as pictures by name; none of a model that would need hours for them."""
        if not self.can_draw():
            return {}
        painter = image_samples.Painter(self.model, self.task.codec, self.task.config.generate.to_dict())
        request = Request(num_samples=len(images))
        return {
            name: image_samples.as_picture(painter, image_samples.generate(painter, given, request).samples, given)
            for name, given in (("samples", None), ("completions", images))
        }
