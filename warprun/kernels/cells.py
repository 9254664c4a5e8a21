"""Formulas of recurrent cells, of one unit of one sequence: LSTM and GRU as in torch, and their derivatives. Functions for kernels.

Gates come after their activation functions: sigmoid, and tanh of the new one. `before` is what is remembered of the cell of an LSTM, or of
the output of a GRU. A slope is the derivative of the loss by a number; those of gates are by what enters their activation functions.
"""

from __future__ import annotations


def through_sigmoid(slope, y):
    """Return the slope of what enters a sigmoid that has given `y`."""
    return slope * y * (1.0 - y)


def through_tanh(slope, y):
    """Return the slope of what enters a tanh that has given `y`."""
    return slope * (1.0 - y * y)


def lstm_cell(before, i, f, new):
    """Return the cell of an LSTM after a step: gates `i` (input), `f` (forget) and `new`."""
    return f * before + i * new


def lstm_output(o, squashed):
    """Return the output of an LSTM with the output gate `o`; `squashed`: tanh of the cell."""
    return o * squashed


def lstm_cell_slope(d_cell, d_output, o, squashed):
    """Return the slope of the cell: `d_cell` of the next step, and that of the output; `squashed`: tanh of the cell."""
    return d_cell + through_tanh(d_output * o, squashed)


def lstm_slopes(d_output, d_cell, i, f, new, o, before, squashed):
    """Return the slopes of the gates input, forget, new and output, and that of the cell before."""
    d_i, d_f, d_new = through_sigmoid(d_cell * new, i), through_sigmoid(d_cell * before, f), through_tanh(d_cell * i, new)
    return d_i, d_f, d_new, through_sigmoid(d_output * squashed, o), d_cell * f


def gru_new(own, reset, past):
    """Return what tanh turns into the new gate of a GRU, from the inputs' part `own` and that of the past."""
    return own + reset * past


def gru_output(update, new, before):
    """Return the output of a GRU, `new` or `before` as the update gate says."""
    return new + update * (before - new)


def gru_slopes(d_output, reset, update, new, past, before):
    """Return the slopes of the gates reset, update and new, of the past's part of the new gate, and of the output before by itself."""
    d_new = through_tanh(d_output * (1.0 - update), new)
    d_reset, d_update = through_sigmoid(d_new * past, reset), through_sigmoid(d_output * (before - new), update)
    return d_reset, d_update, d_new, d_new * reset, d_output * update
