"""Linear transforms of keys, as FAISS keeps them."""

from typing import Any

import faiss
import numpy as np

from nearlm.base import Doubles, Floats, Reals


def linear_transform(A: Reals, b: Reals) -> Any:
    """Return the FAISS transform x → A x + b."""
    made = faiss.LinearTransform(A.shape[1], A.shape[0], True)
    faiss.copy_array_to_vector(np.ascontiguousarray(A, np.float32).ravel(), made.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(b, np.float32), made.b)
    made.is_trained = True
    made.set_is_orthonormal()
    return made


def matrix(transform: Any) -> tuple[Doubles, Doubles]:
    """Return A and b of a linear transform x → A x + b."""
    A = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in)
    b = faiss.vector_to_array(transform.b) if transform.have_bias else np.zeros(transform.d_out)
    return A.astype(np.float64), b.astype(np.float64)


def principal_axes(keys: Floats, width: int, eigen_power: float) -> Any:
    """Return the FAISS transform to the first principal axes of keys, scaled so that it keeps their total variance."""
    pca = faiss.PCAMatrix(keys.shape[1], width)
    pca.train(keys)
    variance = faiss.vector_to_array(pca.eigenvalues)[:width].astype(np.float64)
    variance = np.maximum(variance, max(1e-6 * variance[0], np.finfo(np.float32).tiny))
    scale = variance**eigen_power
    scale *= np.sqrt(variance.sum() / (variance * scale**2).sum())
    axes = faiss.vector_to_array(pca.A).reshape(-1, keys.shape[1])[:width] * scale[:, None]
    return linear_transform(axes, -axes @ faiss.vector_to_array(pca.mean))
