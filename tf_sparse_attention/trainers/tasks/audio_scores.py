"""The scores of recordings, every sample once, and what TensorBoard shows and plays of a model of them."""

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import illustrations
from tf_sparse_attention.trainers.tasks import audio_samples, byte_scores
from tf_sparse_attention.trainers.tasks.parts import Request, Shown


class Validation(byte_scores.Validation):
    """Scores the recordings of the validation split, and draws a sample; its data is their token store."""

    metric = "bits_per_byte"

    def make_batches(self, most: int | None) -> tsa.data.Batches:
        """Return the batches to score, of at most `most` windows."""
        data = self.task.config.data
        sizes = data.batch_size, data.sequence_length, data.use_packing
        return tsa.data.evaluation_batches(self.data, *sizes, max_windows=most, overlap=data.overlap)

    def counts(self) -> dict[str, int]:
        """Returns the number of recordings."""
        return {"recordings": self.data.num_documents}

    def show(self) -> Shown:
        """Returns the first recording and a sample of the model, seen and heard, and the use of clusters."""
        codec, settings = self.task.codec, self.task.config.generate.to_dict()
        ids = self.data.document(0)[:-1]  # without the padding after it
        sounds = {"recording": codec.decode(ids)}
        if self.can_draw():
            player = audio_samples.Player(self.model, codec, settings)
            (sample,) = audio_samples.generate(player, Request()).samples
            sounds["sample"] = codec.decode(sample["token_ids"])
        pictures = {}
        if illustrations.has_matplotlib():
            pictures = {name: audio_samples.as_picture(samples, codec.sample_rate) for name, samples in sounds.items()}
        shown = self.show_health(ids[: self.task.config.data.sequence_length], pictures)
        return shown._replace(sounds={name: (samples, codec.sample_rate) for name, samples in sounds.items()})
