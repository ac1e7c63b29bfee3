"""octavo pull"""

from __future__ import annotations

from octavo.cli.flags import Model, model_or_default


def pull(model: Model = None) -> None:
    """Fetch a model, if it is not here yet, and print where it lies."""
    from octavo.cli.progress import ProgressReport
    from octavo.weights.references import resolve

    with ProgressReport() as progress:
        path = resolve(model_or_default(model), progress)
    print(path)
