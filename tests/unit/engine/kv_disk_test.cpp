// SPDX-License-Identifier: Apache-2.0
// The prompt cache on disk without an engine: files that are whole or not there, within their bytes,
// the least recently used first out; other processes, killed ones, full disks, damaged and foreign
// files, folders that others may write to.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <set>

#include "base/checksum.h"
#include "base/error.h"
#include "base/random.h"
#include "engine/kv_disk.h"
#include "engine/kv_file.h"
#include "unit/test_util.h"

namespace moebius::kv_disk_test {
namespace {

namespace fs = std::filesystem;

KvDiskOptions options_of(const fs::path& folder, uint64_t bytes = uint64_t{1} << 30) {
  KvDiskOptions o;
  o.folder = folder.string();
  o.bytes = bytes;
  return o;
}

std::string name_of(size_t i) { return fmt::format("{:064x}-0.kv", i); }

// A file whose every byte follows from its number.
std::vector<uint8_t> content_of(size_t i, size_t bytes = 1000) {
  KvFile file;
  file.fingerprint.assign(kKvKeyChars, 'f');
  file.parent = fmt::format("{:064x}", i);
  file.length = 128 * i + 20;
  SplitMix64 random(i);
  for (size_t t = 0; t < 20; ++t) file.tokens.push_back(static_cast<int32_t>(random.below(1000)));
  std::vector<uint8_t> out(bytes);
  for (uint8_t& b : out) b = static_cast<uint8_t>(random.next());
  write_kv_file_head(file, out);
  seal_kv_file(out);
  return out;
}

void put(KvDisk& disk, size_t i, size_t bytes = 1000) {
  auto room = disk.take(bytes, true);
  if (!room) return;
  *room = content_of(i, bytes);
  disk.put(name_of(i), std::move(*room), nullptr, disk.next_orders(1), false);
}

// Parses a whole file; returns "" or why it is no valid one.
std::string read_file(std::span<const uint8_t> bytes, KvFile& out) {
  std::string trouble = read_kv_file_head(bytes, bytes.size(), out);
  if (trouble.empty() && checksum(bytes.last(out.block_bytes)) != out.block_sum)
    trouble = "the checksum of its block is wrong";
  return trouble;
}

// Reads a whole file of a disk, and tells it how long that took.
bool read(KvDisk& disk, const std::string& name, std::vector<uint8_t>& out) {
  const uint64_t start = disk.now();
  const KvFileReader file = disk.open(name);
  if (!file.there()) return false;
  out.resize(file.size());
  if (!file.read(0, out)) return false;
  disk.has_read(out.size(), 1, disk.now() - start);
  return true;
}

std::set<size_t> kept(KvDisk& disk, size_t until) {
  std::set<size_t> out;
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < until; ++i)
    if (read(disk, name_of(i), bytes)) {
      EXPECT_EQ(bytes, content_of(i));
      out.insert(i);
    }
  return out;
}

std::set<size_t> numbers(size_t from, size_t until) {
  std::set<size_t> out;
  for (; from < until; ++from) out.insert(from);
  return out;
}

std::string refusal(const KvDiskOptions& options) {
  try {
    const KvDisk disk(options);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(KvFile, SaysWhatWasWritten) {
  for (const size_t tokens : {size_t{1}, size_t{17}, size_t{128}}) {
    KvFile file;
    file.fingerprint.assign(kKvKeyChars, 'a'), file.parent.assign(kKvKeyChars, '0');
    file.kind = 2, file.length = 4000;
    for (size_t t = 0; t < tokens; ++t) file.tokens.push_back(static_cast<int32_t>(t * 77));
    std::vector<uint8_t> bytes(kv_file_bytes(tokens, 333));
    for (size_t i = kv_file_block_at(tokens); i < bytes.size(); ++i)
      bytes[i] = static_cast<uint8_t>(i);
    write_kv_file_head(file, bytes);
    seal_kv_file(bytes);
    KvFile found;
    ASSERT_EQ(read_file(bytes, found), "");
    EXPECT_EQ(found.fingerprint, file.fingerprint);
    EXPECT_EQ(found.parent, file.parent);
    EXPECT_EQ(found.kind, 2u);
    EXPECT_EQ(found.length, 4000u);
    EXPECT_EQ(found.tokens, file.tokens);
    EXPECT_EQ(found.block_bytes, 333u);
    EXPECT_EQ(found.block_sum, checksum(std::span(bytes).last(333)));
  }
}

TEST(KvFile, DamageAtEveryPlaceIsSeen) {
  const std::vector<uint8_t> good = content_of(3, 700);
  KvFile read;
  ASSERT_EQ(read_file(good, read), "");
  for (size_t at = 0; at < good.size(); ++at)
    for (const uint8_t change : {uint8_t{1}, uint8_t{0x80}, uint8_t{0xff}}) {
      std::vector<uint8_t> bad = good;
      bad[at] = static_cast<uint8_t>(bad[at] ^ change);
      EXPECT_NE(read_file(bad, read), "") << at;
    }
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_NE(read_file(std::span(good).first(n), read), "") << n;
    std::vector<uint8_t> zeros = good;  // as a disk that lost its power leaves it
    std::fill(zeros.begin() + static_cast<std::ptrdiff_t>(n), zeros.end(), uint8_t{0});
    EXPECT_NE(read_file(zeros, read), "") << n;
  }
  std::vector<uint8_t> longer = good;
  longer.push_back(0);
  EXPECT_NE(read_file(longer, read), "");
}

TEST(KvDisk, FilesAreThereAfterARestart) {
  const test::TempDir temp;
  {
    KvDisk disk(options_of(temp / "kv"));
    for (size_t i = 0; i < 5; ++i) put(disk, i);
    EXPECT_TRUE(disk.holds(name_of(4)));
    EXPECT_FALSE(disk.holds(name_of(5)));
    disk.flush();
    EXPECT_EQ(disk.figures().bytes, 5000u);
    EXPECT_EQ(disk.figures().written_files, 5u);
    put(disk, 3);  // is there
    disk.flush();
    EXPECT_EQ(disk.figures().written_files, 5u);
  }
  KvDisk disk(options_of(temp / "kv"));
  EXPECT_EQ(disk.figures().bytes, 5000u);
  EXPECT_EQ(disk.figures().files, 5u);
  EXPECT_EQ(kept(disk, 8), numbers(0, 5));
  EXPECT_EQ(disk.figures().read_bytes, 5000u);
  struct stat s {};
  ASSERT_EQ(stat((temp / "kv").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07777u, 0700u);
  ASSERT_EQ(stat((temp / "kv" / name_of(0)).c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07777u, 0600u);
}

TEST(KvDisk, TheLeastRecentlyUsedGoesFirstWithinTheBytes) {
  const test::TempDir temp;
  {
    KvDisk disk(options_of(temp / "kv", 5000));
    for (size_t i = 0; i < 5; ++i) put(disk, i);
    disk.used({name_of(0), name_of(1)}, disk.next_orders(2));
    put(disk, 5), put(disk, 6);
    disk.flush();
    EXPECT_EQ(kept(disk, 10), (std::set<size_t>{0, 1, 4, 5, 6}));
    EXPECT_EQ(disk.figures().evicted, 2u);
    EXPECT_EQ(disk.figures().bytes, 5000u);
    EXPECT_FALSE(disk.take(5001, true));  // more than all
  }
  {  // what the run before left counts, and the order of use is remembered
    KvDisk disk(options_of(temp / "kv", 5500));
    put(disk, 7);
    disk.flush();
    EXPECT_EQ(kept(disk, 10), (std::set<size_t>{0, 1, 5, 6, 7}));
  }
  KvDisk disk(options_of(temp / "kv", 2000));  // less than there is
  EXPECT_EQ(kept(disk, 10), (std::set<size_t>{6, 7}));
}

// A file's time is that of its last use, whatever a clock said before: files of a time to come are older
// than what is used now.
TEST(KvDisk, FilesCarryTheTimeOfTheirUse) {
  const test::TempDir temp;
  const auto time_of = [&](size_t i) {
    struct stat s {};
    EXPECT_EQ(stat((temp / "kv" / name_of(i)).c_str(), &s), 0);
    return s.st_mtim;
  };
  const time_t before = time(nullptr);
  {
    KvDisk disk(options_of(temp / "kv", 4000));
    for (size_t i = 0; i < 3; ++i) put(disk, i);
    disk.used({name_of(1), name_of(0)}, disk.next_orders(2));
    disk.flush();
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_GE(time_of(i).tv_sec, before);
      EXPECT_LE(time_of(i).tv_sec, time(nullptr) + 1);
    }
  }
  const timespec ahead = {before + 100'000'000, 0}, times[2] = {ahead, ahead};
  ASSERT_EQ(utimensat(AT_FDCWD, (temp / "kv" / name_of(2)).c_str(), times, 0), 0);
  const timespec early = {5, 0}, counted[2] = {early, early};  // of a build that counted uses
  ASSERT_EQ(utimensat(AT_FDCWD, (temp / "kv" / name_of(1)).c_str(), counted, 0), 0);
  KvDisk disk(options_of(temp / "kv", 3000));
  EXPECT_EQ(kept(disk, 3), numbers(0, 3));
  put(disk, 3), put(disk, 4);
  disk.flush();
  EXPECT_EQ(kept(disk, 5), (std::set<size_t>{2, 3, 4}));
  put(disk, 5);
  disk.flush();
  EXPECT_EQ(kept(disk, 6), (std::set<size_t>{3, 4, 5}));
}

// What was used later does not go for it.
TEST(KvDisk, AnOlderFileTakesNoPlaceOfANewerOne) {
  const test::TempDir temp;
  KvDisk disk(options_of(temp / "kv", 2000));
  const uint64_t first = disk.next_orders(3);
  for (size_t i = 0; i < 3; ++i) {
    auto room = disk.take(1000, true);
    ASSERT_TRUE(room);
    *room = content_of(i);
    disk.put(name_of(i), std::move(*room), nullptr, first + 2 - i, false);
  }
  disk.flush();
  EXPECT_EQ(kept(disk, 3), numbers(0, 2));
  EXPECT_EQ(disk.figures().dropped, 1u);
}

TEST(KvDisk, AFolderOfOthersIsRefused) {
  const test::TempDir temp;
  for (const unsigned mode : {0777u, 01777u, 0770u, 0702u}) {
    const fs::path folder = temp / fmt::format("open{:o}", mode);
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    ASSERT_EQ(chmod(folder.c_str(), mode), 0);
    const std::string words = refusal(options_of(folder));
    EXPECT_NE(words.find("others may write to it"), std::string::npos) << words;
    EXPECT_TRUE(fs::is_empty(folder));
  }
  if (geteuid() == 0) {
    const fs::path folder = temp / "foreign";
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
    const std::string words = refusal(options_of(folder));
    EXPECT_NE(words.find("belongs to another user"), std::string::npos) << words;
  }
  test::write_file(temp / "file", "x");
  EXPECT_NE(refusal(options_of(temp / "file")).find("cannot be opened"), std::string::npos);
  EXPECT_NE(refusal(options_of(temp / "no/where")).find("cannot be made"), std::string::npos);
  // Others may look into a folder: if nothing else is there, they may no longer.
  const fs::path folder = temp / "readable";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_EQ(refusal(options_of(folder)), "");
  struct stat s {};
  ASSERT_EQ(stat(folder.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07777u, 0700u);
}

TEST(KvDisk, ForeignFilesAreLeftAlone) {
  const test::TempDir temp;
  const fs::path folder = temp / "kv";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  test::write_file(folder / "notes.txt", std::string(9000, 'x'));
  test::write_file(folder / "short.kv", "x");
  fs::create_directory(folder / name_of(1));
  fs::create_symlink(folder / "notes.txt", folder / name_of(2));
  ASSERT_EQ(mkfifo((folder / name_of(3)).c_str(), 0600), 0);
  KvDisk disk(options_of(folder, 3000));
  EXPECT_EQ(disk.figures().files, 0u);
  std::vector<uint8_t> bytes;
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_FALSE(disk.find(name_of(i)));
    EXPECT_FALSE(read(disk, name_of(i), bytes));
  }
  for (size_t i = 10; i < 20; ++i) put(disk, i);
  disk.flush();
  EXPECT_EQ(kept(disk, 30), numbers(17, 20));
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder / "short.kv"));
  EXPECT_TRUE(fs::is_symlink(folder / name_of(2)));
}

// Two that share a folder, one after the other file: together within the bytes, and each reads what
// the other wrote.
TEST(KvDisk, TwoShareAFolder) {
  const test::TempDir temp;
  KvDisk a(options_of(temp / "kv", 6000)), b(options_of(temp / "kv", 6000));
  for (size_t i = 0; i < 20; ++i) {
    put(i % 2 == 0 ? a : b, i);
    a.flush(), b.flush();
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(temp / "kv"))
      if (entry.path().extension() == ".kv") bytes += entry.file_size();
    EXPECT_LE(bytes, 6000u);
    EXPECT_EQ(kept(a, 20), kept(b, 20));
  }
  EXPECT_EQ(kept(a, 20).size(), 6u);
  EXPECT_TRUE(kept(a, 20).count(19) == 1);
}

// The same at the same time: every file that is read is whole.
TEST(KvDisk, TwoWriteTheSameAtOnce) {
  const test::TempDir temp;
  KvDisk a(options_of(temp / "kv", 20000)), b(options_of(temp / "kv", 20000));
  for (size_t round = 0; round < 5; ++round) {
    for (size_t i = 0; i < 40; ++i) put(a, i), put(b, 39 - i);
    for (const size_t i : kept(a, 40)) EXPECT_LT(i, 40u);
  }
  a.flush(), b.flush();
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(temp / "kv")) {
    if (entry.path().extension() == ".kv") bytes += entry.file_size();
    EXPECT_FALSE(entry.path().filename().string().starts_with("writing-"));
  }
  EXPECT_LE(bytes, 20000u);
}

TEST(KvDisk, AFullDiskIsSaidOnceAndServingGoesOn) {
  const test::TempDir temp;
  std::vector<std::string> said;
  size_t writes = 0;
  KvDiskOptions options = options_of(temp / "kv");
  options.say = [&](const std::string& words) { said.push_back(words); };
  options.write = [&](int fd, std::span<const uint8_t> bytes) {
    const bool full = ++writes > 2 && writes <= 5;
    const std::span<const uint8_t> some = bytes.first(full ? 300 : bytes.size());
    EXPECT_EQ(write(fd, some.data(), some.size()), static_cast<ssize_t>(some.size()));
    return full ? ENOSPC : 0;
  };
  KvDisk disk(options);
  for (size_t i = 0; i < 7; ++i) put(disk, i);
  disk.flush();
  EXPECT_EQ(kept(disk, 7), (std::set<size_t>{0, 1, 5, 6}));
  EXPECT_EQ(disk.figures().dropped, 3u);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("No space left on device"), std::string::npos) << said[0];
  for (const auto& entry : fs::directory_iterator(temp / "kv"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("writing-"));
}

// Nobody waits for a disk that is behind.
TEST(KvDisk, WhatCannotBeWrittenInTimeIsDropped) {
  const test::TempDir temp;
  std::mutex slow;
  KvDiskOptions options = options_of(temp / "kv");
  options.queue_bytes = 3000;
  options.write = [&](int fd, std::span<const uint8_t> bytes) {
    const std::lock_guard wait(slow);
    return write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) ? 0 : EIO;
  };
  KvDisk disk(options);
  std::unique_lock lock(slow);
  size_t taken = 0;
  for (size_t i = 0; i < 10; ++i) {
    auto room = disk.take(1000, false);
    if (!room) continue;
    *room = content_of(i);
    disk.put(name_of(i), std::move(*room), nullptr, disk.next_orders(1), false);
    ++taken;
  }
  EXPECT_EQ(taken, 3u);
  EXPECT_EQ(disk.figures().dropped, 7u);
  lock.unlock();
  disk.flush();
  EXPECT_EQ(kept(disk, 10), numbers(0, 3));
}

// A process that is killed while it writes leaves whole files, and half written ones that nobody
// takes for any; the next one removes these.
TEST(KvDisk, AKilledProcessLeavesNothingWrong) {
  const test::TempDir temp;
  for (size_t round = 0; round < 4; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      KvDiskOptions options = options_of(temp / "kv");
      options.queue_bytes = 5000;
      options.write = [&](int fd, std::span<const uint8_t> bytes) {  // slowly, byte by byte
        for (size_t i = 0; i < bytes.size(); ++i) {
          if (write(fd, &bytes[i], 1) != 1) return EIO;
          if (i == 300 + 100 * round && write(ready[1], "x", 1) != 1) return EIO;
        }
        return 0;
      };
      KvDisk disk(options);
      for (size_t i = 0;; ++i) put(disk, 1000 * round + i);
    }
    ASSERT_GT(child, 0);
    char c = 0;
    for (size_t i = 0; i < 4; ++i) ASSERT_EQ(::read(ready[0], &c, 1), 1);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    close(ready[0]), close(ready[1]);
    KvDisk disk(options_of(temp / "kv"));
    for (const auto& entry : fs::directory_iterator(temp / "kv"))
      EXPECT_FALSE(entry.path().filename().string().starts_with("writing-")) << entry.path();
    EXPECT_GE(kept(disk, 1000 * round + 500).size(), 3 * (round + 1));
  }
}

// The half written file of a process that lives is not a killed one's.
TEST(KvDisk, WhatAnotherIsWritingStays) {
  const test::TempDir temp;
  std::mutex slow;
  KvDiskOptions options = options_of(temp / "kv");
  options.write = [&](int fd, std::span<const uint8_t> bytes) {
    const std::lock_guard wait(slow);
    return write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) ? 0 : EIO;
  };
  KvDisk a(options);
  {
    std::unique_lock lock(slow);
    put(a, 1);
    const auto begun = [&] {
      for (const auto& entry : fs::directory_iterator(temp / "kv"))
        if (entry.path().filename().string().starts_with("writing-")) return true;
      return false;
    };
    while (!begun()) std::this_thread::yield();
    const KvDisk b(options_of(temp / "kv"));
    EXPECT_TRUE(begun());
  }
  a.flush();
  EXPECT_EQ(kept(a, 3), (std::set<size_t>{1}));
}

TEST(KvDisk, ReadingIsMeasured) {
  const test::TempDir temp;
  uint64_t time = 0;
  KvDiskOptions options = options_of(temp / "kv");
  options.clock = [&] { return time += 10'050'000; };  // ten milliseconds more than a file takes
  KvDisk disk(options);
  put(disk, 1);
  disk.flush();
  const double first = disk.read_nanoseconds(1'000'000, 1);
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < 100; ++i) ASSERT_TRUE(read(disk, name_of(1), bytes));
  EXPECT_NEAR(disk.read_nanoseconds(1'000'000, 1), 1e4 * 1e6, 1e9);
  EXPECT_GT(disk.read_nanoseconds(1'000'000, 1), 100 * first);
}

}  // namespace
}  // namespace moebius::kv_disk_test
