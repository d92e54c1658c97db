// SPDX-License-Identifier: Apache-2.0
// Which device runs which part of a model.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace moebius {

// Parts of a layer are placed apart: attention (with all that is not experts), and experts (with
// their router; a dense MLP too).
struct DevicePlacement {
  std::string ends = "cpu";  // token table and logits
  struct Rule {
    std::string attention = "cpu", experts = "cpu";
    size_t from = 0;  // layers from here on, up to the next rule's
  };
  std::vector<Rule> rules = {Rule{}};
  // Divided layers: the experts that lie on the rule's device, in ascending order; the others are on the
  // CPU. None: router and shared experts are there alone.
  std::map<size_t, std::vector<uint32_t>> divided = {};

  const Rule& of(size_t layer) const;
  bool one_device() const;
  std::string describe() const;  // "cpu", "attention=a,experts=b"
  std::string cuda() const;      // the CUDA device it names, "": none; throws Error for two
};

// What the places of a divided layer hold: the experts of its device, then the others.
std::vector<uint32_t> divided_places(const std::vector<uint32_t>& here, size_t experts);

// "DEV", or "PART=DEV[:LAYERS]" with commas between: attention=DEV, experts=DEV, ends=DEV; LAYERS is
// "N-" or "N-M", counted from 0, else all. Throws Error for what is none of these, and for devices
// that are not there.
DevicePlacement parse_placement(std::string_view text);

// Names that parse_placement() takes, for people.
std::vector<std::string> device_names();

// The devices of a placement, as one model uses them.
class DeviceSet {
 public:
  DeviceSet(const DevicePlacement& placement, ThreadPool* pool, const Cpu& cpu,
            DeviceOptions options);
  Device& ends() const { return *find(placement_.ends); }
  Device& attention(size_t layer) const { return *find(placement_.of(layer).attention); }
  Device& experts(size_t layer) const { return *find(placement_.of(layer).experts); }
  Device& cpu() const { return *find("cpu"); }  // of a placement with divided layers
  const std::vector<Device*>& all() const { return all_; }
  const DevicePlacement& placement() const { return placement_; }

 private:
  Device* find(const std::string& name) const { return devices_.at(name).get(); }
  DevicePlacement placement_;
  std::map<std::string, std::shared_ptr<Device>> devices_;  // of its copies, too
  std::vector<Device*> all_;
};

}  // namespace moebius
