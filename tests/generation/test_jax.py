"""Samplers, the loop, optimizers and published models on JAX: the same checks, in a process with that backend."""

import json

import pytest

pytest.importorskip("jax")
# JAX compiles every operation of every shape; each of these takes it a few seconds at most.
SHORT = [
    "generation/test_samplers.py::test_the_nucleus_is_the_published_one",
    "generation/test_loop.py::test_state_goes_from_step_to_step",
    "generation/test_loop.py::test_samples_are_the_same_on_every_backend",
]
LONG = [
    "generation/test_samplers.py::test_seeds_count_modulo_two_to_the_32",
    "generation/test_samplers.py::test_for_a_batch_the_published_top_k_takes_one_threshold_and_ours_keeps_k_a_row",
    "generation/test_loop.py::test_rows_of_different_lengths_go_on_from_their_own_ends",
    "generation/test_samplers.py::test_for_one_row_the_published_top_k_drops_its_threshold_and_is_our_k_less_1",
    "generation/test_samplers.py::test_for_one_row_the_published_top_1_keeps_nothing_and_ours_keeps_the_best",
    "models/test_generation.py::test_log_probabilities_are_those_of_one_pass",
    "models/test_sequence_to_sequence.py::test_targets_are_extended_and_taken_back_after_the_sources_are_encoded",
    "models/test_stateful.py::test_segments_one_after_the_other_give_what_the_whole_text_gives",
    "models/test_targets_as_inputs.py::test_a_model_that_goes_on_tells_its_targets_too",
    "models/test_targets_as_inputs.py::test_training_is_that_with_the_probabilities_of_all_words",
    "ops/test_ctc.py::test_padded_frames_hold_no_labels_and_do_not_change_other_rows",
    "ops/test_ctc.py::test_the_gradient_equals_finite_differences",
    "optimizers/test_adafactor.py::test_every_step_equals_the_published_one",
    "optimizers/test_adagrad.py::test_an_embedding_takes_the_same_steps_as_its_dense_gradient",
    "convert/t2t/test_goldens.py::test_states_clusters_logits_and_losses_are_published",
]
CODE = """
import json, pytest

class Outcomes(dict):
    __hash__ = object.__hash__  # a plugin has to have one

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            outcome = report.longrepr[2] if report.skipped else report.outcome
            self.setdefault(report.nodeid.removeprefix("tests/").split("[")[0], []).append(outcome)

outcomes = Outcomes()
# Whatever the process has imported by now, pytest needs to rewrite the assertions of tests alone.
quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
pytest.main(["-q", "-p", "no:cacheprovider", *quiet, *{tests!r}], plugins=[outcomes])
print("outcomes:", json.dumps(outcomes))
"""


def outcomes_on_jax(run_jax, names):
    """Run tests or files by name and return {test: outcomes}, one for each of its cases, and all that pytest said.

    An outcome is "passed", "failed" or the reason why the test was skipped.
    """
    said = run_jax(CODE.format(tests=[f"tests/{name}" for name in names]))
    return json.loads(said.rpartition("outcomes:")[2]), said


@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
def test_the_main_checks_hold_on_jax(run_jax, names):
    found, said = outcomes_on_jax(run_jax, names)
    assert set(found) == set(names), said
    assert {outcome for outcomes in found.values() for outcome in outcomes} == {"passed"}, said
