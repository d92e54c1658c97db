// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/suggest.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "apps/cli/help.h"
#include "apps/commands.h"
#include "base/error.h"

namespace moebius {
namespace {

bool is_folder(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// Lists the commands and subjects that have the option.
void owners_of(const Command& command, std::string_view option, std::vector<std::string>& out) {
  if (command.subjects.empty() && command.find(option) != nullptr && !command.hidden)
    out.push_back(command.name);
  for (const Command& c : command.subjects) owners_of(c, option, out);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({replaced, d[i - 1][j] + 1, d[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest(std::string_view wanted, std::span<const std::string> names) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : names) {
    // A prefix or an extension of a name is near, whatever its length.
    const bool prefix = wanted.size() > 3 &&
                        (name.starts_with(wanted) || wanted.starts_with(name)) && name.size() > 3;
    const size_t distance = prefix ? 1 : edit_distance(wanted, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string unknown_command(const Command& parent, std::string_view name) {
  const std::string shown = printable(name, 60);
  if (is_folder(std::string(name)))
    return fmt::format("`{0}` is a folder, not a command; did you mean `run {0}`?", shown);
  const std::vector<std::string> names = shown_subjects(parent);
  const std::string near = nearest(name, names);
  const std::string where = parent.name == "moebius" ? "" : parent.name + " ";
  if (!near.empty())
    return fmt::format("there is no command `{0}{1}`; did you mean `{0}{2}`?", where, shown, near);
  return fmt::format("there is no command `{}{}`; there are {}", where, shown,
                     fmt::join(names, ", "));
}

std::string unknown_option(const Command& tool, const Command& command, std::string_view name) {
  const std::string shown = printable(name, 60);
  const std::string head = fmt::format("`{}` has no option `{}`", command.name, shown);
  std::vector<std::string> owners, names;
  owners_of(tool, name, owners);
  if (!owners.empty()) return fmt::format("{}; it belongs to {}", head, fmt::join(owners, ", "));
  for (const Option& o : command.options) names.insert(names.end(), o.names.begin(), o.names.end());
  const std::string near = nearest(name, names);
  return near.empty() ? head : fmt::format("{}; did you mean `{}`?", head, near);
}

}  // namespace moebius
