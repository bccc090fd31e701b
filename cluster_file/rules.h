// The rules that concern several keys, by subject. Each adds what it finds to `problems`, in the
// place of the key that is at fault, or to `notes`, which are worth reading and no faults.
#pragma once

#include <string>
#include <vector>

#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/problems.h"
#include "cluster_file/surroundings.h"

namespace brigade::cluster_file {

struct RuleContext {
  const v1::ClusterFile& file;  // with defaults, paths resolved
  const Places& places;
  const Surroundings* surroundings;  // nullptr: look at nothing but the text
  Problems* problems;
  std::vector<std::string>* notes;

  void fault(const std::string& key, std::string sentence) const {
    problems->add(places.of(key), key, std::move(sentence));
  }
};

// Hosts and workers: names that are there once, addresses that can be dialled, devices, ports,
// times. False when a host is named that is not there; the other rules need all of them.
bool check_names(const RuleContext& context);
// Devices, their maths, and how rows travel between them. Part of check_names().
void check_devices(const RuleContext& context);
void check_numbers(const RuleContext& context);

// TLS, tokens, data plane, remote shell.
void check_trust(const RuleContext& context);

// Files and folders, where they can be looked at.
void check_files(const RuleContext& context);

}  // namespace brigade::cluster_file
