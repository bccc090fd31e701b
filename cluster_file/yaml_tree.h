// YAML text as a tree whose nodes know where they stand. Bounded: size, depth and the number of
// nodes after aliases are written out, so that a small file cannot become a large one. yaml-cpp is
// used behind this header alone; none of its exceptions leaves. The tree owns its nodes.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cluster_file/problems.h"

namespace brigade::cluster_file {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxDepth = 16;
constexpr int kMaxNodes = 10000;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry {
    const YamlNode* key;
    const YamlNode* value;
  };

  Kind kind = Kind::kNull;
  Place place;
  bool plain = true;  // not in quotes
  std::string text;   // of a scalar
  std::vector<const YamlNode*> items;
  std::vector<Entry> entries;
  int num_nodes = 1;  // with all below, aliases written out
  int height = 1;
};

struct YamlTree {
  std::deque<YamlNode> nodes;
  const YamlNode* root = nullptr;
};

// One document. On any fault nullopt, and one problem is added.
std::optional<YamlTree> parse_yaml(const std::string& text, Problems* problems);

}  // namespace brigade::cluster_file
