"""The command that runs the evaluation harness on a store."""

from typing import Annotated

from nearlm.cli.help import SEARCH, TEXT
from nearlm.cli.options import OWN_MODEL, PLAIN, Model, More, Place, Search, Shown, Store, model_spec, option
from nearlm.store import SearchSettings, open_stores


def lm_eval_command(
    store: Store,
    /,
    *,
    more: More = (),
    tasks: Annotated[tuple[str, ...], option(TEXT, "Tasks of the harness, or of --include-path.")],
    include_path: Annotated[Place | None, option(TEXT, "Folder with task files of your own.")] = None,
    num_fewshot: Annotated[int | None, option(TEXT, "Examples before each question. [default: the task's]")] = None,
    limit: Annotated[int | None, option(TEXT, "Only the first N examples of each task.")] = None,
    batch_size: Annotated[int, option(TEXT, "Requests that are computed together.")] = 1,
    settings: Search = SearchSettings(),
    no_knn: Annotated[bool, option(SEARCH, "The model alone, without its memory.")] = False,
    spec: Model = OWN_MODEL,
    output: Shown = PLAIN,
) -> None:
    """Run tasks of lm-evaluation-harness on the model with its memory."""
    from nearlm.knnlm.harness import run_harness

    stores = open_stores([store, *more])
    found = run_harness(
        stores,
        [task for several in tasks for task in several.split(",")],
        memory="off" if no_knn else "on",
        model=model_spec(stores[0], spec),
        settings=settings,
        include_path=None if include_path is None else str(include_path),
        num_fewshot=num_fewshot,
        limit=limit,
        batch_size=batch_size,
    )
    if output.as_json:
        output.show({"memory": not no_knn, "results": found["results"]})
    else:
        from lm_eval.utils import make_table

        print(make_table(found))
