// SPDX-License-Identifier: Apache-2.0
// Decides which device runs which part of a model.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace moebius {

// Says which device runs each part of a model. Attention (with everything but experts) and experts
// (with their router; also a dense MLP) of a layer may be on different devices.
struct DevicePlacement {
  std::string ends = "cpu";  // device of the token table and the logits
  struct Rule {
    std::string attention = "cpu", experts = "cpu";
    size_t from = 0;  // first layer of the rule; the last one is before the next rule's first
  };
  std::vector<Rule> rules = {Rule{}};
  // Layers whose experts are divided between two devices: [layer] the experts on the rule's device,
  // ascending; the others are on the CPU. An empty list: only router and shared experts are on the
  // device.
  std::map<size_t, std::vector<uint32_t>> divided = {};

  const Rule& of(size_t layer) const;
  bool one_device() const;
  std::string describe() const;  // returns text such as "cpu" or "attention=a,experts=b"
  // Returns the name of the GPU, "": none; throws Error if there are two.
  std::string gpu() const;
};

// Returns the expert in each place of a divided layer: those in `here`, then the others.
std::vector<uint32_t> divided_places(const std::vector<uint32_t>& here, size_t experts);

// Parses "DEV", or a list of "PART=DEV[:LAYERS]" with commas: attention=DEV, experts=DEV, ends=DEV;
// LAYERS is "N-" or "N-M", counted from 0, else all. Throws Error for other texts and for devices
// that do not exist.
DevicePlacement parse_placement(std::string_view text);

// Returns names that parse_placement() accepts, for messages.
std::vector<std::string> device_names();

// Makes a device by its name. pool: null for a device that only plans.
std::shared_ptr<Device> make_device(const std::string& name, ThreadPool* pool, const Cpu& cpu,
                                    const DeviceOptions& options);

// Owns the device objects of a placement, which one model uses.
class DeviceSet {
 public:
  DeviceSet(const DevicePlacement& placement, ThreadPool* pool, const Cpu& cpu,
            DeviceOptions options);
  Device& ends() const { return *find(placement_.ends); }
  Device& attention(size_t layer) const { return *find(placement_.of(layer).attention); }
  Device& experts(size_t layer) const { return *find(placement_.of(layer).experts); }
  Device& cpu() const { return *find("cpu"); }  // exists for placements with divided layers
  const std::vector<Device*>& all() const { return all_; }
  const DevicePlacement& placement() const { return placement_; }

 private:
  Device* find(const std::string& name) const { return devices_.at(name).get(); }
  DevicePlacement placement_;
  std::map<std::string, std::shared_ptr<Device>> devices_;  // shared with copies of this set
  std::vector<Device*> all_;
};

}  // namespace moebius
