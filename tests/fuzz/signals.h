// SPDX-License-Identifier: MIT
#pragma once

#include "reader.h"
#include "signals/signal.h"

// Which signals of a map are read, and results that a kernel may leave as they are.
namespace attnscope::fuzz {

inline SignalOptions read_signals(Bytes& bytes) {
  using Kind = SignalOptions::Kind;
  const Kind kinds[] = {Kind::rows, Kind::last, Kind::mean, Kind::offset};
  SignalOptions options;
  options.kind = kinds[bytes.byte() % 4];
  options.drop_first = bytes.flag();
  options.detrend = bytes.flag();
  options.min_keys = bytes.between(1, 40);
  return options;
}

inline std::vector<double> unset(Index size) {
  return std::vector<double>(static_cast<std::size_t>(size),
                             std::numeric_limits<double>::quiet_NaN());
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return same_bits(x, y) || (std::isnan(x) && std::isnan(y));
         });
}

}  // namespace attnscope::fuzz
