// "did you mean": the known word nearest to one that is not known. Pure function.
#pragma once

#include <string>
#include <vector>

namespace brigade::cluster_file {

// At most a third of the letters may differ (added, left out, changed or swapped with the next);
// case and '-' for '_' are free. Empty when none is near.
std::string near_miss(const std::string& word, const std::vector<std::string>& known);

// "; did you mean X?", or "; known are A, B, C" when none is near and there are few.
std::string hint(const std::string& word, const std::vector<std::string>& known);

}  // namespace brigade::cluster_file
