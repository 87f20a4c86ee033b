// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Entropies of all rows of a finite map under a support that is known, with the bits that
// `attention_entropy` gives them with `fast`: where the rows are contiguous, four rows of AVX-512
// at a time. `zeros_behind`: what lies behind a row's keys is known to be 0. To `out` [queries].
template <class Scalar>
void fast_entropies(const MatrixView<Scalar>& attention, const Support& support, bool zeros_behind,
                    double* out, RowScratch& scratch);

}  // namespace attnscope
