# SPDX-License-Identifier: MIT
"""Measures in torch operations, for tensors that live on an accelerator.

A tensor on a device is measured there wherever the measure is a reduction or dense linear algebra. Each
module of this package holds such measures under the stem that the same measure has everywhere else, with
the arguments and results of the core's function of that name; a metric does not know which of the two
computes it. The other measures copy the tensor to the CPU once. Arithmetic is float64; on MPS, which has
none, sums and products are compensated float32, whose results are within 2⁻²¹ of 1 + their size, whatever the
number of tokens. `use("torch")` runs the torch operations on
CPU tensors too, so that they can be compared with the core without a device.

    >>> import torch, attnscope as asc
    >>> star = torch.zeros(4, 4); star[:, 0] = 1
    >>> with asc.devices.use("torch"):
    ...     asc.incoming_attention(star)
    tensor([1., 0., 0., 0.], dtype=torch.float64)
"""

from attnscope.devices.call_counts import measured_where
from attnscope.devices.placement import CUDA_IS_SLOWER, computed_on, use

__all__ = ["CUDA_IS_SLOWER", "computed_on", "measured_where", "use"]
