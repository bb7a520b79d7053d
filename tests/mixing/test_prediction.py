"""What a memory says: the same of targets and of the whole vocabulary, whichever way it is mixed."""

import numpy as np
import torch

from nearlm.mixing.interpolation import Interpolation
from nearlm.mixing.prediction import Prediction, Spent
from nearlm.search import Neighbors


def test_targets_and_vocabulary_agree():
    rng = np.random.default_rng(3)
    near = Neighbors(rng.uniform(0, 5, (3, 4)), rng.integers(0, 6, (3, 4)).astype(np.int32), None, None)
    retrieved = np.ones(3, bool)
    said = Interpolation(near, retrieved, np.full(3, 0.4), 2.0)
    prediction = Prediction(said, near, retrieved, Spent(0.0, 0.0, 0.0))
    log_lm = torch.tensor(rng.normal(size=(3, 6))).log_softmax(-1)
    whole = prediction.log_p_vocabulary(log_lm).numpy()
    for token in range(6):
        log_knn, logp = prediction.score(log_lm[:, token].numpy(), np.full(3, token, np.int32))
        np.testing.assert_allclose(logp, whole[:, token], rtol=1e-9)
        expected = 0.4 * np.exp(log_knn) + 0.6 * np.exp(log_lm[:, token].numpy())
        np.testing.assert_allclose(np.exp(logp), expected, rtol=1e-9)
    assert (prediction.lam == 0.4).all()
