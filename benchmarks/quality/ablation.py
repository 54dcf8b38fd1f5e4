"""The loss of a run's model without each head: `python -m benchmarks.quality.ablation --workdir=runs/demo`."""

import argparse

NUM_WINDOWS = 32  # of the test split, evenly spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run")
    options = parser.parse_args()

    import tf_sparse_attention as tsa
    from trainers.shared import components, workdir

    config = workdir.load_config(options.workdir)
    tokenizer, source = workdir.load_tokenizer(options.workdir), components.make_text_source(config)
    store = tsa.data.open_token_store(source, tokenizer, "test")
    names = ("batch_size", "sequence_length", "use_packing")
    batches = tsa.data.evaluation_batches(store, **{name: config.data[name] for name in names}, max_windows=NUM_WINDOWS)
    print(tsa.analysis.head_importance(workdir.load_model(options.workdir), batches))


if __name__ == "__main__":
    main()
