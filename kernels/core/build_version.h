// The version that all processes of a cluster must share. It rises with every change of the wire
// between them or of the numerics; a process of another version is refused when it joins.
#pragma once

namespace brigade {

inline constexpr char kBuildVersion[] = "0.1.0";

}  // namespace brigade
