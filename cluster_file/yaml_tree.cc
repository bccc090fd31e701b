#include "cluster_file/yaml_tree.h"

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace brigade::cluster_file {
namespace {

// Leaves the parser from within; caught in parse_yaml.
struct Refusal {
  Place place;
  std::string sentence;
};

Place place_of(const YAML::Mark& mark) {
  return mark.is_null() ? Place{} : Place{mark.line + 1, mark.column + 1};
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlTree take() { return std::move(tree_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(started_, true)) {
      throw Refusal{place_of(mark), "a second document; the file must hold one"};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode* node = add(YamlNode::Kind::kNull, mark);
    finish(node, anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // The parser's own tags: "?" for plain text, "!" for text in quotes or blocks.
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    YamlNode* node = add(YamlNode::Kind::kScalar, mark);
    node->plain = tag != "!";
    node->text = value;
    if (node->plain && (value == "~" || value == "null")) node->kind = YamlNode::Kind::kNull;
    finish(node, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      throw Refusal{place_of(mark), "an alias inside what it stands for"};
    }
    const YamlNode& target = *found->second;
    check_depth(mark, target.height);
    count(mark, target.num_nodes);
    tree_.nodes.push_back(target);
    tree_.nodes.back().place = place_of(mark);
    place_in_parent(&tree_.nodes.back());
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode* node;
    YAML::anchor_t anchor;
    const YamlNode* key = nullptr;  // of a map: read, its value comes next
  };

  [[noreturn]] static void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    throw Refusal{place_of(mark), absl::StrCat("the tag ", tag, " has no meaning here")};
  }

  void check_depth(const YAML::Mark& mark, int height) const {
    if (static_cast<int>(open_.size()) + height > kMaxDepth) {
      throw Refusal{place_of(mark), absl::StrCat("nested deeper than ", kMaxDepth)};
    }
  }

  void count(const YAML::Mark& mark, int nodes) {
    total_ += nodes;
    if (total_ > kMaxNodes) {
      throw Refusal{place_of(mark), absl::StrCat("more than ", kMaxNodes,
                                                 " values (aliases count as what they stand for)")};
    }
  }

  YamlNode* add(YamlNode::Kind kind, const YAML::Mark& mark) {
    check_depth(mark, 1);
    count(mark, 1);
    tree_.nodes.emplace_back();
    tree_.nodes.back().kind = kind;
    tree_.nodes.back().place = place_of(mark);
    return &tree_.nodes.back();
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    open_.push_back({add(kind, mark), anchor});
  }

  void close() {
    const Open done = open_.back();
    open_.pop_back();
    finish(done.node, done.anchor);
  }

  void finish(YamlNode* node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    place_in_parent(node);
  }

  void place_in_parent(const YamlNode* node) {
    if (open_.empty()) {
      tree_.root = node;
      return;
    }
    Open& parent = open_.back();
    parent.node->num_nodes += node->num_nodes;
    parent.node->height = std::max(parent.node->height, node->height + 1);
    if (parent.node->kind == YamlNode::Kind::kList) {
      parent.node->items.push_back(node);
    } else if (parent.key == nullptr) {
      parent.key = node;
    } else {
      parent.node->entries.push_back({std::exchange(parent.key, nullptr), node});
    }
  }

  YamlTree tree_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, const YamlNode*> anchors_;
  int total_ = 0;
  bool started_ = false;
};

// Bytes of the UTF-8 character that starts at `at`; 0 when there is none (broken, longer than
// needed, a surrogate, past U+10FFFF).
size_t utf8_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(at + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool outside = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
  return overlong || outside ? 0 : length;
}

// The first thing that no text file has; nullopt when there is none.
std::optional<Refusal> find_no_text(const std::string& text) {
  Place place;
  for (size_t at = 0; at < text.size();) {
    const auto code = static_cast<unsigned char>(text[at]);
    if ((code < 0x20 && code != '\n' && code != '\r' && code != '\t') || code == 0x7f) {
      return Refusal{place, "a control character; this is no text file"};
    }
    const size_t length = utf8_length(text, at);
    if (length == 0) return Refusal{place, "not UTF-8"};
    at += length;
    ++place.column;
    if (code == '\n') place = {place.line + 1, 1};
  }
  return std::nullopt;
}

}  // namespace

std::optional<YamlTree> parse_yaml(const std::string& text, Problems* problems) {
  if (text.size() > kMaxFileBytes) {
    problems->add({}, "", absl::StrCat("larger than ", kMaxFileBytes >> 20, " MiB"));
    return std::nullopt;
  }
  if (const auto refusal = find_no_text(text)) {
    problems->add(refusal->place, "", refusal->sentence);
    return std::nullopt;
  }
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    TreeBuilder builder;
    while (parser.HandleNextDocument(builder)) {
    }
    YamlTree tree = builder.take();
    if (tree.root != nullptr) return tree;
    problems->add({}, "", "the file is empty");
  } catch (const Refusal& refusal) {
    problems->add(refusal.place, "", refusal.sentence);
  } catch (const YAML::Exception& error) {
    problems->add(place_of(error.mark), "", absl::StrCat("no YAML: ", error.msg));
  } catch (const std::exception& error) {
    problems->add({}, "", absl::StrCat("cannot be read as YAML: ", error.what()));
  }
  return std::nullopt;
}

}  // namespace brigade::cluster_file
