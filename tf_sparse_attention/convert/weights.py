"""Weights of a language model by name, whatever the model itself is called."""


def weights_by_path(model):
    """Returns the weights of a `LanguageModel` by their paths below it, those of its backbone under "backbone/"."""
    paths = {}
    for weight in model.weights:
        path = weight.path.removeprefix(f"{model.name}/")
        own = path.removeprefix(f"{model.backbone.name}/")
        paths[path if own == path else f"backbone/{own}"] = weight
    return paths
