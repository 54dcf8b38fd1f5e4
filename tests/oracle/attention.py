"""Dense attention of one head by the book, in NumPy and float64."""

import numpy as np


def slopes(num_heads):
    """Return ALiBi's slopes: 2^(-8 m / N) for m = 1 .. N if N is a power of two.

    Otherwise those of the next smaller power P, then the 1st, 3rd, 5th .. of 2 P.
    """
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    exact = [2 ** (-8 * m / power) for m in range(1, power + 1)]
    finer = [2 ** (-8 * m / (2 * power)) for m in range(1, 2 * power + 1)]
    return np.array(exact + finer[0::2][: num_heads - power])


def rotate(x, positions, base=10000.0, back=False):
    """Return rows (T, H) turned by their positions: (x_c + i x_{c + H/2}) times exp(i position base^(-2 c / H))."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions)[:, None] * base ** (-2.0 * np.arange(half) / x.shape[-1])
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(-1j * angles if back else 1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def capped(products, cap):
    """Return cap tanh(products / cap), or the products where the cap is None."""
    return products if cap is None else cap * np.tanh(products / cap)


def attend(query, key, value, allowed, bias=0.0, rows=None, key_table=None, value_table=None, cap=None, sink=None):
    """Return the output (T, Hv) and the weights (T, S) of one head.

    s_ij = f(q_i . k_j) + q_i . key_table[rows_ij] + bias_ij with f(x) = cap tanh(x / cap), p = softmax over the allowed
    j, and over the sink, which has no value,
    o_i = sum_j p_ij (v_j + value_table[rows_ij]); a query that may see nothing gets zeros. Without a cap f(x) = x.
    Query (T, H), key (S, H), value (S, Hv), `allowed`, `bias` and `rows` (T, S), tables (R, H) and (R, Hv); the sink
    is a number or a column (T, 1) of them.
    """
    scores = capped(query @ key.T, cap) + bias
    if key_table is not None:
        scores = scores + np.take_along_axis(query @ key_table.T, rows, 1)
    highest = np.max(scores, axis=1, where=allowed, initial=-np.inf, keepdims=True)
    exponentials = np.where(allowed, np.exp(np.where(allowed, scores - highest, 0.0)), 0.0)
    total = exponentials.sum(1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.where(np.isfinite(highest), sink - highest, 0.0))
    weights = exponentials / np.maximum(total, 1e-300)
    output = weights @ value
    if value_table is not None:
        output = output + np.einsum("ts,tsh->th", weights, value_table[rows])
    return output, weights
