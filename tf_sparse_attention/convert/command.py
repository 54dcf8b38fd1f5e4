"""The command line of the conversions."""

import argparse
import logging
import pathlib
import sys

from tf_sparse_attention.convert.causal_routing import with_causal_routing
from tf_sparse_attention.convert.t2t.conversion import convert, plan_of
from tf_sparse_attention.convert.t2t.files import open_checkpoint
from tf_sparse_attention.files import replacing

AS_PUBLISHED = (
    "Routed heads select as published, over the whole sequence: earlier outputs depend on later tokens and on padding. "
    "Full blocks give the published logits. --causal makes them causal, with other logits until it is trained on."
)
AS_CAUSAL = "Routed heads are causal now: logits differ from the published ones until the model is trained on."


def main(arguments=None):
    """Runs the command.

    Args:
        arguments: list of strings; None: those of the process.

    Returns:
        Exit status: 0, or 1 with a message on standard error where the input is wrong.
    """
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        given.run(given)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tf_sparse_attention.convert", description="Converts trained weights to Keras models."
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    t2t = kinds.add_parser(
        "t2t",
        help="a checkpoint of the published Routing Transformer",
        description="Converts a TensorFlow 1 checkpoint of the published Routing Transformer.",
    )
    t2t.add_argument("checkpoint", help="prefix of its files, a folder with one checkpoint, or the published zip file")
    t2t.add_argument("--output", type=pathlib.Path, help="the model to write, NAME.keras; needed without --dry-run")
    t2t.add_argument("--hparams", help="settings: a file hparams.json, or a preset such as pg19_routing_published")
    t2t.add_argument("--dry-run", action="store_true", help="print what would become of each variable, and stop")
    t2t.add_argument("--causal", action="store_true", help="let routed heads select causally; this changes the logits")
    t2t.add_argument("--without-optimizer", action="store_true", help="leave out the state of the optimizer")
    t2t.set_defaults(run=_convert_t2t)
    return parser


def _convert_t2t(given):
    if not given.dry_run and (given.output is None or given.output.suffix != ".keras"):
        raise ValueError(f"`--output` must be a file NAME.keras. Received: {given.output}.")
    keep_optimizer = not (given.without_optimizer or given.causal)
    with open_checkpoint(given.checkpoint) as checkpoint:
        plan = plan_of(checkpoint, given.hparams)
        if given.dry_run:
            print(plan.table())
            return
        if given.causal and not plan.layout.routed:
            raise ValueError("`--causal` must be left out for a model without routed heads. Received: --causal.")
        model = convert(checkpoint, plan, keep_optimizer)
    _write(with_causal_routing(model) if given.causal else model, plan, given)


def _write(model, plan, given):
    given.output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(given.output) as beside:
        model.save(beside)
    print(f"{given.output}: {model.count_params():,} numbers in {len(plan.rows)} weights.")
    for kind, count in plan.beside.items():
        if model.compiled and kind == "optimizer slots":
            print(f"Read: {kind}, {count} in all; those of weights that are cut or folded begin anew.")
        else:
            print(f"Left out: {count} {kind}.")
    if plan.layout.routed:
        print(AS_CAUSAL if given.causal else AS_PUBLISHED)
