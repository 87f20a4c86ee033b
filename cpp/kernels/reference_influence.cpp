// SPDX-License-Identifier: MIT
#include "kernels/reference_influence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/rows.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

Index influence_rows(Index n) { return std::clamp<Index>((Index{1} << 16) / n / 16 * 16, 16, 64); }

template <class Scalar>
void reference_influence(const MatrixView<Scalar>& attention, const Support& support,
                         const double* states, Index width, const bool* reference, Index stride,
                         Index begin, Index end, const Influence& out,
                         InfluenceWorkspace& workspace) {
  const Index n = attention.rows();
  const Index rows = end - begin;
  const Index columns = support.end(end - 1, n);
  Index marked = 0;
  for (Index j = 0; j < columns; ++j) marked += reference[j * stride] ? 1 : 0;

  // The rows of A in float64, its reference columns moved to a panel of their own.
  double* rest = workspace.attention.resize(rows * (columns + marked));
  double* picked = rest + rows * columns;
  RowReader<Scalar> reader(attention, support, workspace.rows);
  for (Index i = begin; i < end; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    const Index last = reader.end(i);
    double* to = rest + (i - begin) * columns;
    double* pick = picked + (i - begin) * marked;
    for (Index j = 0; j < last; ++j) to[j] = static_cast<double>(row[j]);
    std::fill(to + last, to + columns, 0.0);
    for (Index j = 0; j < columns; ++j) {
      if (!reference[j * stride]) continue;
      *pick++ = to[j];
      to[j] = 0.0;
    }
  }
  double* gathered = workspace.reference.resize(std::max<Index>(1, marked * width));
  Index slot = 0;
  for (Index j = 0; j < columns; ++j) {
    if (reference[j * stride]) std::copy_n(states + j * width, width, gathered + width * slot++);
  }

  double* outputs = workspace.outputs.resize(2 * rows * width);
  Eigen::Map<RowMajor> from_rest(outputs, rows, width);
  Eigen::Map<RowMajor> from_reference(outputs + rows * width, rows, width);
  from_rest.noalias() = Eigen::Map<const RowMajor>(rest, rows, columns) *
                        Eigen::Map<const RowMajor>(states, columns, width);
  if (marked > 0) {
    from_reference.noalias() = Eigen::Map<const RowMajor>(picked, rows, marked) *
                               Eigen::Map<const RowMajor>(gathered, marked, width);
  } else {
    from_reference.setZero();
  }

  for (Index i = begin; i < end; ++i) {
    if (reference[i * stride]) continue;
    const auto c_r = from_reference.row(i - begin);
    const auto c_n = from_rest.row(i - begin);
    const double norm_r = c_r.norm();
    const double norm_n = c_n.norm();
    const double norm = (c_r + c_n).norm();
    out.relative_magnitude[i] = norm > 0.0 ? norm_r / norm : kNaN;
    out.directional[i] = norm > 0.0 && norm_r > 0.0
                             ? std::clamp(c_r.dot(c_r + c_n) / norm_r / norm, -1.0, 1.0)
                             : kNaN;
    // 1 − cos of unit vectors is half the squared distance between them, without cancellation.
    out.information_change[i] =
        norm > 0.0 && norm_n > 0.0 ? 0.5 * ((c_r + c_n) / norm - c_n / norm_n).squaredNorm() : kNaN;
  }
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                        \
  template void reference_influence<Scalar>(const MatrixView<Scalar>&, const Support&,       \
                                            const double*, Index, const bool*, Index, Index, \
                                            Index, const Influence&, InfluenceWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
