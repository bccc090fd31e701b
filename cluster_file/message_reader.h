// A YAML tree into a Protobuf message, by reflection: knows no key by name, so that a new field of
// the message is a new key of the file. Finds unknown and repeated keys, wrong types, numbers out
// of range, words that are none, and missing keys. Pure functions.
#pragma once

#include <string>

#include "cluster_file/problems.h"
#include "cluster_file/yaml_tree.h"
#include "google/protobuf/message.h"

namespace brigade::cluster_file {

// Fills `message` from a map. `path` is the key path of the message, "" for the file itself. What
// is wrong goes into `problems`; where the keys stand into `places`.
void read_message(const YamlNode& node, const std::string& path, google::protobuf::Message* message,
                  Problems* problems, Places* places);

// Sets fields that are absent and have a fallback, here and in messages below.
void fill_fallbacks(google::protobuf::Message* message);

}  // namespace brigade::cluster_file
