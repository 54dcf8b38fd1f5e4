"""Text from a language model: `generate` and `stream`."""

from tf_sparse_attention import checks
from tf_sparse_attention.models.generator import END_ID, Generator
from tf_sparse_attention.models.prompts import read_prompts


class Generation:
    """What `LanguageModel` adds to a Keras model: it continues texts.

    Prompts are read in one pass, and every token costs what its position costs in a pass. A model that cannot decode
    with a cache (`selection="top_k"`) costs a pass for each token, and says so in the log.
    """

    _generator = None

    @property
    def generator(self):
        """The `Generator` of this model, with its compiled programs."""
        if self._generator is None:
            self._generator = Generator(self)
        return self._generator

    def generate(
        self,
        prompts,
        max_length,
        sampler="random",
        tokenizer=None,
        seed=0,
        stop_ids=(END_ID,),
        padding_mask=None,
        return_log_probs=False,
    ):
        """Continues prompts of text or of token ids.

        Args:
            prompts: `str`, `bytes`, or a sequence of ids without the start id 0; or a list, array or tensor of these:
                texts (B,) or ids (B, T). An empty prompt begins a document: the model reads id 0 and goes on.
            max_length: tokens (not characters) of a row, prompt included, at which it stops.
            sampler: "random" (default: draws as the model says), "greedy", "beam", a
                `tf_sparse_attention.generation.Sampling` or `BeamSearch`, or a function (logits (B, V), keys) -> ids
                (B,), as `tf_sparse_attention.generation.sample` is; the same function object in every call, since a
                program is compiled and kept for each.
            tokenizer: the tokenizer the model was trained with. With one, the results are text, and ids that it lacks
                are never drawn; it is needed for prompts of text. None (default): the results are ids.
            seed: integer, from which row i draws as row i of any batch, or one integer a row, from which equal rows
                draw alike wherever they stand. Default 0.
            stop_ids: an id, or several, after which a row stops. Default 1, the end of a document. None: none.
            padding_mask: bool (B, T), False for padding, on the left or the right, where `prompts` is an array of ids.
            return_log_probs: whether to return, too, the log-probability of each token that was added, the stop id
                included, as the model gives it among the ids that can be drawn (all but padding): before temperature
                and cuts. Default False.

        Returns:
            For one prompt its result, for a list of prompts a list: `str` with a character that is cut in two at the
            end as U+FFFD, or int32 array (T,), the stop id included if it came. With `return_log_probs` a pair of that
            and float32 arrays, likewise.

        Raises:
            ValueError: for a prompt that is not of ids of the vocabulary, not UTF-8 where the tokenizer wants it, or
                longer than `max_length`; for a setting out of range.

        Example:
            >>> model.generate("def main():", max_length=300, tokenizer=ByteTokenizer())
            >>> sampler = tsa.generation.Sampling(temperature=0.8, top_p=0.95)
            >>> model.generate([[74, 107], []], max_length=100, sampler=sampler, seed=1)
        """
        checks.check_switch("return_log_probs", return_log_probs)
        read = read_prompts(prompts, self.backbone.vocabulary_size, tokenizer, padding_mask)
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        rows = self.generator.generate(read.rows, max_length, sampler, seed, stop_ids, num_ids)
        results = [row.token_ids if tokenizer is None else tokenizer.detokenize(row.token_ids) for row in rows]
        if return_log_probs:
            return read.in_form(results), read.in_form([row.log_probs for row in rows])
        return read.in_form(results)

    def stream(self, prompt, max_length, sampler="random", tokenizer=None, seed=0, stop_ids=(END_ID,), chunk_size=1):
        """Continues one prompt and yields it piece by piece, as tokens come.

        All pieces one after the other are what `generate` returns, so the first one is of the prompt. A piece of text
        ends where nothing to come can change it: characters of several bytes, and with subwords whole words, come at
        once.

        Args:
            prompt: `str`, `bytes` or a sequence of ids.
            max_length, tokenizer, seed, stop_ids: as for `generate`.
            sampler: as for `generate`, but no beam search.
            chunk_size: tokens after which a piece is yielded; more of them cost less. Default 1.

        Yields:
            `str` with a tokenizer, else int32 arrays; no empty ones.

        Raises:
            ValueError: as `generate`.

        Example:
            >>> for piece in model.stream("def main():", max_length=300, tokenizer=ByteTokenizer()):
            ...     print(piece, end="", flush=True)
        """
        checks.check_count("chunk_size", chunk_size)
        read = read_prompts(prompt, self.backbone.vocabulary_size, tokenizer)
        if len(read.rows) > 1:
            raise ValueError(f"`prompt` must be one prompt. Received: {len(read.rows)}.")
        num_ids = None if tokenizer is None else tokenizer.vocabulary_size
        parts = self.generator.parts(read.rows, max_length, sampler, seed, stop_ids, num_ids, chunk_size)
        return _pieces((row.token_ids for (row,) in parts), tokenizer)


def _pieces(rows, tokenizer):
    """Yields what is new in each row: of the ids, or of the text that will not change, and at the end the rest."""
    given, row = 0, ()
    for row in rows:
        settled = row if tokenizer is None else tokenizer.stable_prefix(row)
        if len(settled) > given:
            yield settled[given:]
            given = len(settled)
    if tokenizer is not None and len(whole := tokenizer.detokenize(row)) > given:
        yield whole[given:]
