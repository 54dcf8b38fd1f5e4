"""Convert published weights to Keras models; see tsa-convert --help."""

import argparse
import logging
import pathlib
import sys
from collections.abc import Sequence

from tf_sparse_attention.backends import check_backend
from tf_sparse_attention.trainers.shared import command_line

NOT_CAUSAL_NOTE = (
    "Routed heads use the published selection, which is not causal: outputs depend on later tokens and on padding. "
    "If the sequence length is a multiple of the block size, logits equal the published logits. --causal makes the "
    "model causal, but the model then needs further training."
)
EXAMPLES = """examples:
  tsa-convert t2t checkpoint.zip --dry-run
  tsa-convert t2t checkpoint.zip --hparams=pg19_routing_published --output=pg19.keras
  tsa-convert miniature small"""
CAUSAL_NOTE = "Routed heads are causal: logits differ from the published logits, and the model needs further training."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the arguments, by default of the process. Return its exit status."""
    options = _parser().parse_args(arguments)  # help needs no backend
    check_backend()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return command_line.WRONG_COMMAND
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="tsa-convert",
        description="Convert published weights to Keras models. KIND --help lists the arguments of a kind.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    t2t = kinds.add_parser(
        "t2t",
        help="a checkpoint of the published Routing Transformer",
        description="Convert a TensorFlow 1 checkpoint of the published Routing Transformer.",
    )
    t2t.add_argument("checkpoint", help="checkpoint prefix, folder with one checkpoint, or the published zip file")
    t2t.add_argument("--output", type=pathlib.Path, help="model to write, NAME.keras; required without --dry-run")
    t2t.add_argument("--hparams", help="file hparams.json, or a preset such as pg19_routing_published")
    t2t.add_argument("--dry-run", action="store_true", help="only print how each variable is used")
    t2t.add_argument("--causal", action="store_true", help="make routed heads causal; this changes the logits")
    t2t.add_argument("--without-optimizer", action="store_true", help="do not restore the optimizer's state")
    t2t.set_defaults(run=_convert_t2t)
    miniature = kinds.add_parser(
        "miniature",
        help="write a small checkpoint to try a conversion without a download",
        description="Write a small checkpoint in the published format with random weights, and its vocabulary.",
    )
    miniature.add_argument("folder", type=pathlib.Path, help="folder to create")
    miniature.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    miniature.add_argument("--encoder", action="store_true", help="write an encoder-decoder")
    miniature.set_defaults(run=_write_miniature)
    return parser


def _write_miniature(options):
    from tf_sparse_attention.convert.t2t.miniature import CHECKPOINT, VOCABULARY, write_miniature

    folder = write_miniature(options.folder, options.seed, options.encoder)
    print(f"{folder / CHECKPOINT}: checkpoint for `tsa-convert t2t {folder / CHECKPOINT} --output=NAME.keras`")
    print(f"{folder / VOCABULARY}: vocabulary")


def _convert_t2t(options):
    from tf_sparse_attention.convert import with_causal_routing
    from tf_sparse_attention.convert.t2t.conversion import convert_checkpoint, plan_conversion
    from tf_sparse_attention.convert.t2t.files import open_checkpoint

    if not options.dry_run and (options.output is None or options.output.suffix != ".keras"):
        raise ValueError(f"`--output` must be a file NAME.keras. Received: {options.output}.")
    with_optimizer = not (options.without_optimizer or options.causal)
    with open_checkpoint(options.checkpoint) as checkpoint:
        plan = plan_conversion(checkpoint, options.hparams)
        if options.dry_run:
            print(plan.table())
            return
        if options.causal and not plan.layout.routed:
            raise ValueError("`--causal` must be unset for a model without routed heads. Received: --causal.")
        model = convert_checkpoint(checkpoint, plan, with_optimizer)
    _write(with_causal_routing(model) if options.causal else model, plan, options)


def _write(model, plan, options):
    from tf_sparse_attention.atomic_files import atomic_file

    options.output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(options.output) as temporary:
        model.save(temporary)
    print(f"{options.output}: {model.count_params():,} parameters in {len(plan.rows)} weights.")
    for kind, count in plan.other_variables.items():
        if model.compiled and kind == "optimizer slots":
            print(f"Read: {kind}, {count} in total. The slots of split or folded weights are reset.")
        else:
            print(f"Omitted: {count} {kind}.")
    if plan.layout.routed:
        print(CAUSAL_NOTE if options.causal else NOT_CAUSAL_NOTE)


if __name__ == "__main__":
    sys.exit(main())
