"""The evaluation harness (lm-eval): its model `nearlm`, a store's LM with its memory on or off.

Importing this module registers the model. It is imported by its name, since it needs the extra `lm-eval`.
"""

from typing import Any

from nearlm.base import Json, OptionError, check_at_least
from nearlm.knnlm.attachment import attach
from nearlm.model.lm import AnyModel
from nearlm.store import AnyStores, SearchSettings, open_stores
from nearlm.store.model_files import as_lm

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise OptionError("the evaluation harness is not installed; run: pip install 'nearlm[lm-eval]'") from error

_MEMORY = ("on", "off")


@register_model("nearlm")
class HarnessLM(HFLM):  # type: ignore[misc]
    """The harness's own Hugging Face model, whose logits are those of the mixture.

    Args:
        store: Folder of a store, `cache:NAME`, `hf:user/name`, or an open store; or a list of several.
        memory: `on`, or `off` for the model alone.
        model: The store's model where it is now.
        settings: What is given here goes before what was tuned.
        options: Those of the harness's `hf` model that make sense for a loaded model: `batch_size`, `max_length`, …
    """

    def __init__(
        self,
        store: AnyStores,
        memory: str = "on",
        model: AnyModel = None,
        settings: SearchSettings = SearchSettings(),
        **options: Any,
    ):
        if memory not in _MEMORY:
            raise OptionError(f"`memory` is {memory!r}, expected one of {', '.join(_MEMORY)}")
        stores = open_stores(store)
        opened = stores[0]
        lm = as_lm(opened, model)
        options.pop("device", None)  # a loaded model is where it is
        bos = opened.manifest.bos
        prefix = {"prefix_token_id": bos[0]} if bos else {}
        super().__init__(lm.model, tokenizer=lm.tokenizer, **{"add_bos_token": bool(bos), **prefix, **options})
        self.attachment = attach(lm, stores, settings) if memory == "on" else None

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Score whole texts; the token in front of a window is the BOS already, which the harness would add again."""
        added = vars(self)["add_bos_token"]
        self.add_bos_token = False
        try:
            found: list[float] = super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self.add_bos_token = added
        return found

    def close(self) -> None:
        """Take the memory from the model."""
        if self.attachment is not None:
            self.attachment.detach()


def run_harness(
    store: AnyStores,
    tasks: list[str],
    *,
    memory: str = "on",
    model: AnyModel = None,
    settings: SearchSettings = SearchSettings(),
    include_path: str | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int = 1,
) -> Json:
    """Run tasks of the harness on a store's LM with its memory, and return the harness's own results.

    Args:
        store: Folder of a store, `cache:NAME`, `hf:user/name`, or an open store; or a list of several.
        tasks: Names of tasks; `lm-eval ls tasks` lists those of the harness.
        memory: `on`, or `off` for the model alone.
        model: The store's model where it is now.
        settings: What is given here goes before what was tuned.
        include_path: A folder with task files (YAML) of one's own.
        num_fewshot: How many examples are put before each question.
        limit: Take only the first so many examples of each task.
        batch_size: How many requests are computed together.
    """
    from lm_eval import simple_evaluate

    check_at_least(0, num_fewshot=num_fewshot)
    check_at_least(1, limit=limit, batch_size=batch_size)
    manager = _manager(tasks, include_path)
    lm = HarnessLM(store, memory, model, settings, batch_size=batch_size)
    try:
        found: Json = simple_evaluate(
            lm, tasks=tasks, task_manager=manager, num_fewshot=num_fewshot, limit=limit, bootstrap_iters=1000
        )
    finally:
        lm.close()
    return found


def _manager(tasks: list[str], include_path: str | None) -> Any:
    """Return what knows all the tasks; of the harness's own there are thousands to look through."""
    from lm_eval.tasks import TaskManager

    unknown = tasks
    for defaults in (False, True):
        if defaults or include_path is not None:
            manager = TaskManager(include_path=include_path, include_defaults=defaults)
            unknown = [task for task in tasks if task not in manager.all_tasks]
            if not unknown:
                return manager
    raise OptionError(f"the harness has no task {unknown[0]!r}; lm-eval ls tasks lists them, `include_path` adds")
