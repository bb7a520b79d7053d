"""The mixture of LM and memories after one forward pass: rows of one memory are searched for together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearlm.base import Int32s
from nearlm.knnlm.scoring import LMStatistics, as_array
from nearlm.mixing import Contexts, Known, Memory, Prediction
from nearlm.model.statistics import statistics_of
from nearlm.serve.decoder import Said
from nearlm.serve.explanation import Trace, trace_tokens


@dataclass(frozen=True)
class _Group:
    """The rows of one memory, and what that says of them."""

    memory: Memory
    rows: list[int]
    contexts: Contexts | None
    prediction: Prediction


class Mixed:
    """What LM and memories say of n contexts: log p of the whole vocabulary, and why."""

    def __init__(self, said: Said, memories: Sequence[Memory | None], contexts: Contexts):
        exact = torch.float64 if said.logits.dtype == torch.float64 else torch.float32
        self.log_lm: Tensor = said.logits.to(exact).log_softmax(-1)
        self.log_p: Tensor = self.log_lm
        self._groups: list[_Group] = []
        alike: dict[int, list[int]] = {}
        for row, memory in enumerate(memories):
            if memory is not None:
                alike.setdefault(id(memory), []).append(row)
        for rows in alike.values():
            memory = memories[rows[0]]
            assert memory is not None
            self._groups.append(self._ask(said, memory, rows, contexts))

    def _ask(self, said: Said, memory: Memory, rows: list[int], contexts: Contexts) -> _Group:
        """Ask a memory of its rows, and mix what it says into their log p."""
        everything = len(rows) == len(self.log_lm)
        log_lm = self.log_lm if everything else self.log_lm[rows]
        here = contexts[np.array(rows)] if memory.needs_contexts else None
        statistics = None
        if memory.needs_statistics:
            found = statistics_of(log_lm)
            statistics = LMStatistics(*(as_array(value) for value in (found.conf, found.ent, found.top)))
        queries = said.keys[rows].float().cpu().numpy()
        prediction = memory.predict(queries, Known.of(statistics, here, len(rows)))
        mixed = prediction.log_p_vocabulary(log_lm)
        if everything:
            self.log_p = mixed
        else:
            self.log_p = self.log_p.clone() if self.log_p is self.log_lm else self.log_p
            self.log_p[rows] = mixed
        return _Group(memory, rows, here, prediction)

    def near(self, place: int) -> tuple[Any, ...]:
        """Return the neighbours of a context, if it was searched for, their row, and those in other stores."""
        group = next((group for group in self._groups if place in group.rows), None)
        if group is None:
            return None, 0
        at = group.rows.index(place)
        if not group.prediction.retrieved[at]:
            return None, 0
        prediction = group.prediction
        return prediction.near, int(prediction.retrieved[:at].sum()), *prediction.others

    def traces(self, targets: Int32s, neighbors: Sequence[int | None]) -> list[Trace | None]:
        """Explain one target per row, with its number of neighbours; None for rows of which nobody asks."""
        found: list[Trace | None] = [None] * len(targets)
        if all(most is None for most in neighbors):
            return found
        places = torch.as_tensor(targets, device=self.log_lm.device).long()
        log_lm = self.log_lm.gather(1, places[:, None])[:, 0].double().cpu().numpy()
        for row, most in enumerate(neighbors):
            if most is not None:
                p = float(np.exp(log_lm[row]))
                found[row] = Trace(p, p)
        for group in self._groups:
            most = max((neighbors[row] or 0 for row in group.rows), default=0)
            if all(neighbors[row] is None for row in group.rows):
                continue
            args = (log_lm[group.rows], np.asarray(targets, np.int32)[group.rows], group.contexts, most)
            for row, trace in zip(group.rows, trace_tokens(group.memory, group.prediction, *args), strict=True):
                wanted = neighbors[row]
                if wanted is not None:
                    found[row] = replace(trace, neighbors=trace.neighbors[:wanted])
        return found
