// SPDX-License-Identifier: Apache-2.0
// Whole models through the public interfaces: C gives what C++ gives and what the tool prints; bad
// calls, handles that are gone and processes that were forked end in words.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "moebius/model.hpp"
#include "moebius/moebius.h"
#include "unit/test_util.h"

namespace moebius::model_api_test {
namespace {

std::string golden(const std::string& name) { return (test_data_dir() / "golden" / name).string(); }

std::string field(const char* name) {
  const char* text = moebius_last_error_field(name);
  return text == nullptr ? "" : text;
}

std::string taken(char* text) {
  if (text == nullptr) return std::string("no text: ") + moebius_last_error();
  std::string out = text;
  moebius_string_free(text);
  return out;
}

struct Said {
  std::vector<int32_t> tokens;
  std::string text;
  int finish = 0;
};

Said run_cpp(const llm::Model& model, const llm::Request& request) {
  llm::Engine engine(model);
  engine.add(request);
  Said said;
  while (!engine.idle())
    for (const llm::Event& e : engine.step()) {
      if (e.token >= 0) said.tokens.push_back(e.token);
      said.text += e.text;
      if (e.finish != llm::Finish::kNone) said.finish = static_cast<int>(e.finish);
    }
  return said;
}

Said run_c(moebius_model* model, const moebius_request& request) {
  Said said;
  moebius_engine* engine = moebius_engine_new(model, nullptr);
  EXPECT_NE(engine, nullptr) << moebius_last_error();
  EXPECT_EQ(moebius_engine_add(engine, &request, nullptr), 0) << moebius_last_error();
  while (moebius_engine_idle(engine) == 0) {
    const moebius_event* events = nullptr;
    size_t count = 0;
    if (moebius_engine_step(engine, &events, &count) != 0) {
      ADD_FAILURE() << moebius_last_error();
      break;
    }
    for (size_t i = 0; i < count; ++i) {
      if (events[i].token >= 0) said.tokens.push_back(events[i].token);
      said.text.append(events[i].text, events[i].text_bytes);
      if (events[i].finish != MOEBIUS_FINISH_NONE) said.finish = events[i].finish;
    }
  }
  moebius_engine_free(engine);
  return said;
}

moebius_request request_of(const std::vector<int32_t>& prompt) {
  moebius_request r;
  EXPECT_EQ(moebius_request_init(&r, sizeof r), 0);
  r.prompt = prompt.data();
  r.prompt_tokens = prompt.size();
  return r;
}

TEST(ModelApi, SaysWhatTheToolSays) {
  const std::string folder = test::bundled_model_dir().string();
  const llm::Model model = llm::Model::load(folder);
  moebius_model* c = moebius_model_load(folder.c_str(), nullptr);
  ASSERT_NE(c, nullptr) << moebius_last_error();
  struct Case {
    std::string options;
    float temperature;
    uint64_t seed;
    const char* stop;
    float sigmas = 0;
  };
  for (const Case& k :
       {Case{"--temp 0", 0, 0, nullptr}, Case{"--temp 0.8 --seed 7", 0.8f, 7, nullptr},
        Case{"--temp 0 --stop ' and'", 0, 0, " and"},
        Case{"--temp 1.5 --seed 7 --top-n-sigma 1.5", 1.5f, 7, nullptr, 1.5f}}) {
    const test::CommandResult tool = test::run_tool(
        "run " + test::shell_quote(folder) + " -p 'It was a dark' -n 20 --json -q " + k.options);
    ASSERT_EQ(tool.status, 0) << tool.err;
    const Json j = parse_json(tool.out, "answer");
    llm::Request request;
    request.prompt = model.tokenizer().encode("It was a dark");
    request.sampling.max_tokens = 20;
    request.sampling.temperature = k.temperature;
    request.sampling.seed = k.seed;
    if (k.sigmas > 0) request.sampling.top_n_sigma = k.sigmas;
    if (k.stop != nullptr) request.sampling.stop = {k.stop};
    const Said cpp = run_cpp(model, request);
    EXPECT_EQ(cpp.text, j.find("text")->as_string());
    ASSERT_EQ(cpp.tokens.size(), j.find("tokens")->items().size());
    for (size_t i = 0; i < cpp.tokens.size(); ++i)
      EXPECT_EQ(cpp.tokens[i], *j.find("tokens")->items()[i].as_int());
    moebius_request r = request_of(request.prompt);
    r.max_tokens = 20;
    r.temperature = k.temperature;
    r.seed = k.seed;
    if (k.sigmas > 0) r.top_n_sigma = k.sigmas;
    if (k.stop != nullptr) r.stop = &k.stop, r.stops = 1;
    const Said said = run_c(c, r);
    EXPECT_EQ(said.tokens, cpp.tokens);
    EXPECT_EQ(said.text, cpp.text);
    EXPECT_EQ(said.finish, cpp.finish);
  }
  moebius_model_free(c);
}

// The form of an answer: the tool, C++ and C hold it alike, and refuse it alike.
TEST(ModelApi, AnswersInAForm) {
  const std::string folder = test::bundled_model_dir().string();
  const std::string schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":1,"maximum":99}},"required":["name","age"],"additionalProperties":false})";
  const test::TempDir dir;
  test::write_file(dir.path() / "schema.json", schema);
  const test::CommandResult tool = test::run_tool(
      "run " + test::shell_quote(folder) + " -p 'Her name was' -n 60 --json -q --temp 1 --seed 3 " +
      "--json-schema " + test::shell_quote((dir.path() / "schema.json").string()));
  ASSERT_EQ(tool.status, 0) << tool.err;
  const Json said = parse_json(tool.out, "answer");
  const Json value = parse_json_strictly(said.find("text")->as_string(), "text");
  EXPECT_EQ(value.members().size(), 2u);
  const llm::Model model = llm::Model::load(folder);
  llm::Request request;
  request.prompt = model.tokenizer().encode("Her name was");
  request.sampling.max_tokens = 60, request.sampling.temperature = 1, request.sampling.seed = 3;
  request.sampling.json_schema = schema;
  EXPECT_EQ(run_cpp(model, request).text, said.find("text")->as_string());
  request.sampling.json_schema.clear();
  request.sampling.regex = "[A-Z][a-z]{2,8}";
  const std::string name = run_cpp(model, request).text;
  EXPECT_TRUE(name.size() >= 3 && name.size() <= 9 && name[0] >= 'A' && name[0] <= 'Z') << name;
  request.sampling.choice = {"yes", "no"};
  {
    llm::Engine engine(model);
    EXPECT_THROW(engine.add(request), Error);  // two forms
    request.sampling.regex.clear(), request.sampling.min_tokens = 1;
    EXPECT_THROW(engine.add(request), Error);
    request.sampling.min_tokens = 0, request.sampling.choice.clear();
    request.sampling.json_schema = R"({"not":{}})";
    try {
      engine.add(request);
      ADD_FAILURE() << "was taken";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "json_schema.not is not kept");
      EXPECT_EQ(e.place().field, "json_schema");
    }
  }
  moebius_model* c = moebius_model_load(folder.c_str(), nullptr);
  ASSERT_NE(c, nullptr) << moebius_last_error();
  moebius_request r = request_of(request.prompt);
  r.max_tokens = 60, r.temperature = 1, r.seed = 3;
  r.json_schema = schema.c_str();
  EXPECT_EQ(run_c(c, r).text, said.find("text")->as_string());
  r.json_schema = nullptr;
  const char* words[] = {"yes", "no"};
  r.choice = words, r.choices = 2;
  const std::string word = run_c(c, r).text;
  EXPECT_TRUE(word == "yes" || word == "no") << word;
  moebius_model_free(c);
  EXPECT_EQ(test::run_tool("run -p a --regex '['").status, 2);
  EXPECT_EQ(test::run_tool("run -p a --regex a --ignore-eos").status, 2);
}

TEST(ModelApi, LogitsPerplexityAndFacts) {
  const std::string folder = golden("qwen3moe-w4a8-g32-pack");
  const llm::Model model = llm::Model::load(folder);
  moebius_model* c = moebius_model_load(folder.c_str(), nullptr);
  ASSERT_NE(c, nullptr) << moebius_last_error();
  const std::vector<int32_t> tokens = {1, 5, 3, 7, 2, 9, 4};
  ASSERT_EQ(moebius_model_vocab(c), model.vocab());
  EXPECT_EQ(moebius_model_context(c), model.context());
  std::vector<float> a(tokens.size() * model.vocab()), b = a;
  model.logits(tokens, a);
  ASSERT_EQ(moebius_model_logits(c, tokens.data(), tokens.size(), b.data(), b.size()), 0)
      << moebius_last_error();
  EXPECT_EQ(a, b);
  EXPECT_NE(a, std::vector<float>(a.size()));
  EXPECT_NE(moebius_model_logits(c, tokens.data(), tokens.size(), b.data(), b.size() - 1), 0);
  EXPECT_EQ(field("kind"), "argument");
  const std::vector<int32_t> bad = {1, 1 << 30};
  EXPECT_THROW(model.logits(bad, std::span(a).first(2 * model.vocab())), Error);
  const llm::Perplexity p = model.perplexity(tokens, 3);
  EXPECT_EQ(p.tokens, tokens.size() - 1);
  moebius_perplexity q{};
  q.size = sizeof q;
  ASSERT_EQ(moebius_model_perplexity(c, tokens.data(), tokens.size(), 3, &q), 0);
  EXPECT_EQ(q.loss, p.loss);
  EXPECT_EQ(q.tokens, p.tokens);
  EXPECT_EQ(taken(moebius_model_info_json(c)), model.info_json());
  EXPECT_FALSE(parse_json(model.info_json(), "info").find("kernels")->items().empty());
  moebius_model_free(c);
}

TEST(ModelApi, ReportsAreTheToolsOwn) {
  const std::string folder = golden("qwen3moe-mixed-layers"), quoted = test::shell_quote(folder);
  const Folder open = Folder::open(folder);
  EXPECT_EQ(open.inspect_json(), test::run_tool("inspect --json " + quoted).out);
  EXPECT_EQ(open.inspect_json(true), test::run_tool("inspect --deep --json " + quoted).out);
  EXPECT_EQ(open.explain_json(), test::run_tool("explain --json " + quoted).out);
  EXPECT_EQ(open.explain_json("neon,dotprod"),
            test::run_tool("explain --cpu neon,dotprod --json " + quoted).out);
  moebius_folder* c = moebius_folder_open(folder.c_str());
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(taken(moebius_folder_inspect_json(c, 1)), open.inspect_json(true));
  EXPECT_EQ(taken(moebius_folder_explain_json(c, nullptr)), open.explain_json());
  EXPECT_EQ(moebius_folder_architecture(c), open.architecture());
  EXPECT_EQ(moebius_folder_block_count(c), open.moe_blocks().size());
  EXPECT_EQ(moebius_folder_block_name(c, 0), open.moe_blocks()[0]);
  EXPECT_EQ(moebius_folder_block_name(c, 1000), nullptr);
  moebius_module m{};
  m.size = sizeof m;
  const ModuleInfo info = open.modules()[3];
  ASSERT_EQ(moebius_folder_module(c, 3, &m), 0);
  EXPECT_EQ(m.name, info.name);
  EXPECT_EQ(m.kind, info.kind);
  EXPECT_EQ(m.rule, info.rule);
  EXPECT_EQ(m.bytes, info.bytes);
  moebius_folder_free(c);
}

TEST(ModelApi, TextInAndOut) {
  const std::string folder = test::bundled_model_dir().string();
  const llm::Tokenizer t = llm::Tokenizer::open(folder);
  moebius_tokenizer* c = moebius_tokenizer_open(folder.c_str());
  ASSERT_NE(c, nullptr) << moebius_last_error();
  const std::string text = "It was a dark night, \xc3\xa4h.";
  const std::vector<int32_t> ids = t.encode(text);
  std::vector<int32_t> some(3);
  size_t count = 0;
  ASSERT_EQ(moebius_tokenizer_encode(c, text.data(), text.size(), 1, some.data(), 3, &count), 0);
  EXPECT_EQ(count, ids.size());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), ids.begin()));
  EXPECT_EQ(taken(moebius_tokenizer_decode(c, ids.data(), ids.size(), 0, nullptr)), t.decode(ids));
  EXPECT_EQ(moebius_tokenizer_vocab(c), t.vocab());
  EXPECT_EQ(taken(moebius_tokenizer_token(c, ids[0], nullptr)), *t.token(ids[0]));
  EXPECT_EQ(moebius_tokenizer_id(c, t.token(ids[0])->c_str()), ids[0]);
  EXPECT_EQ(moebius_tokenizer_id(c, "no such token at all"), -1);
  EXPECT_EQ(moebius_tokenizer_is_special(c, ids[0]), t.is_special(ids[0]) ? 1 : 0);
  moebius_stream* stream = moebius_stream_new(c, 0);
  std::string streamed;
  for (const int32_t id : ids) streamed += taken(moebius_stream_push(stream, id, nullptr));
  streamed += taken(moebius_stream_finish(stream, nullptr));
  EXPECT_EQ(streamed, t.decode(ids));
  moebius_tokenizer_free(c);
  EXPECT_EQ(moebius_stream_push(stream, ids[0], nullptr) != nullptr, true);  // keeps its tokenizer
  moebius_stream_free(stream);
}

TEST(ModelApi, ChatsAsTheFolderSays) {
  test::TempDir folder;
  std::filesystem::copy(test::bundled_model_dir(), folder.path(),
                        std::filesystem::copy_options::recursive);
  test::write_file(folder / "chat_template.jinja",
                   "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
                   "{% if add_generation_prompt %}[assistant]{% endif %}");
  const std::string path = folder.path().string();
  const llm::Tokenizer t = llm::Tokenizer::open(path);
  moebius_tokenizer* c = moebius_tokenizer_open(path.c_str());
  moebius_chat chat{};
  chat.size = sizeof chat;
  chat.messages = R"([{"role": "user", "content": "Hi"}])";
  chat.add_generation_prompt = 1;
  ASSERT_EQ(moebius_tokenizer_has_template(c), 1);
  EXPECT_EQ(taken(moebius_tokenizer_template(c, &chat, nullptr)), "[user] Hi\n[assistant]");
  llm::Chat same;
  same.messages = chat.messages;
  std::vector<int32_t> ids(64);
  size_t count = 0;
  ASSERT_EQ(moebius_tokenizer_chat(c, &chat, ids.data(), ids.size(), &count), 0);
  ids.resize(count);
  EXPECT_EQ(ids, t.chat_tokens(same));
  chat.messages = "{";
  EXPECT_EQ(moebius_tokenizer_template(c, &chat, nullptr), nullptr);
  chat.messages = "{}";
  EXPECT_EQ(moebius_tokenizer_template(c, &chat, nullptr), nullptr);
  EXPECT_STREQ(moebius_last_error(), "messages are an object; expected an array");
  moebius_tokenizer_free(c);
}

TEST(ModelApi, SeveralRequestsAnswersAndCancelling) {
  const llm::Model model = llm::Model::load(golden("qwen3moe-w4a8-g32-pack"));
  llm::EngineOptions options;
  options.parallel = 4;
  options.context = 64;
  std::vector<llm::Request> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = {1, 5, static_cast<int32_t>(i) + 2};
    requests[i].sampling.max_tokens = 6;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.temperature = 0.9f;
    requests[i].sampling.n = i == 2 ? 2 : 1;
    requests[i].sampling.logprobs = 2;
  }
  std::vector<Said> alone;
  for (const llm::Request& r : requests) {
    if (r.sampling.n == 1) alone.push_back(run_cpp(model, r));
  }
  llm::Engine engine(model, options);
  EXPECT_THROW(llm::Engine second(model), Error);  // a model has one engine
  std::vector<uint64_t> ids;
  for (const llm::Request& r : requests) ids.push_back(engine.add(r));
  llm::Request endless = requests[0];
  endless.sampling.max_tokens = 50;
  const uint64_t cancelled = engine.add(endless);
  std::map<std::pair<uint64_t, size_t>, std::vector<int32_t>> tokens;
  bool ended = false;
  for (size_t step = 0; !engine.idle(); ++step) {
    for (const llm::Event& e : engine.step()) {
      if (e.token >= 0) {
        tokens[{e.id, e.choice}].push_back(e.token);
        EXPECT_EQ(e.top.size(), 2u);
      }
      if (e.id == cancelled && e.finish == llm::Finish::kCancelled) ended = true;
    }
    if (step == 2) engine.cancel(cancelled);
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ((tokens[{ids[0], 0}]), alone[0].tokens);
  EXPECT_EQ((tokens[{ids[1], 0}]), alone[1].tokens);
  EXPECT_EQ((tokens[{ids[2], 0}]).size(), 6u);
  EXPECT_EQ((tokens[{ids[2], 1}]).size(), 6u);
  llm::Request bad;
  EXPECT_THROW(engine.add(bad), Error);  // no prompt
  bad.prompt = {1};
  bad.sampling.n = 0;
  EXPECT_THROW(engine.add(bad), Error);
  bad.sampling.n = 1;
  bad.sampling.temperature = -1.0f;
  EXPECT_THROW(engine.add(bad), Error);
}

TEST(ModelApi, ProgressIsToldAndCanStop) {
  const std::string folder = test::bundled_model_dir().string();
  uint64_t last = 0, whole = 0;
  llm::LoadOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    last = done, whole = total;
    return true;
  };
  llm::Model::load(folder, options);
  EXPECT_EQ(last, whole);
  EXPECT_GT(whole, 1000000u);
  options.progress = [](uint64_t, uint64_t) { return false; };
  try {
    llm::Model::load(folder, options);
    ADD_FAILURE() << "it was not stopped";
  } catch (const Error& e) {
    EXPECT_EQ(e.place().kind, "state");
  }
  moebius_model_options c{};
  c.size = sizeof c;
  c.progress = [](void* user, uint64_t, uint64_t) { return ++*static_cast<int*>(user), 1; };
  int calls = 0;
  c.user = &calls;
  EXPECT_EQ(moebius_model_load(folder.c_str(), &c), nullptr);
  EXPECT_EQ(calls, 1);
}

// The first load writes packed weights, the second one maps them: equal logits.
TEST(ModelApi, PackedWeights) {
  const std::string folder = test::bundled_model_dir().string();
  const test::TempDir dir;
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(dir.path()), {});
  };
  const std::vector<int32_t> tokens = {1, 2, 3};
  const auto logits = [&](const std::string& pack_dir) {
    llm::LoadOptions options;
    options.pack_dir = pack_dir;
    const llm::Model model = llm::Model::load(folder, options);
    std::vector<float> out(tokens.size() * model.vocab());
    model.logits(tokens, out);
    return out;
  };
  const std::vector<float> plain = logits("");
  EXPECT_EQ(files(), 0);
  EXPECT_EQ(logits(dir.path().string()), plain);
  EXPECT_EQ(files(), 2);  // and the lock
  EXPECT_EQ(logits(dir.path().string()), plain);
  const std::string other = (dir / "by_c").string();
  moebius_model_options c{};
  c.size = sizeof c;
  c.pack_dir = other.c_str();
  moebius_model* model = moebius_model_load(folder.c_str(), &c);
  ASSERT_NE(model, nullptr) << moebius_last_error();
  moebius_model_free(model);
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST(ModelApi, ErrorsKnowTheirPlace) {
  EXPECT_EQ(moebius_folder_open("/no/such/folder"), nullptr);
  EXPECT_EQ(field("kind"), "file");
  EXPECT_EQ(field("file"), "/no/such/folder");
  EXPECT_EQ(moebius_last_error_field("colour"), nullptr);
  EXPECT_EQ(moebius_last_error_field(nullptr), nullptr);
  test::TempDir folder;
  test::write_file(
      folder / "config.json",
      R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": "two"})");
  EXPECT_EQ(moebius_folder_open(folder.path().c_str()), nullptr);
  EXPECT_EQ(field("kind"), "config");
  EXPECT_EQ(field("file"), (folder / "config.json").string());
  EXPECT_EQ(field("field"), "num_hidden_layers") << moebius_last_error();
  for (const auto& entry :
       std::filesystem::directory_iterator(test_data_dir() / "negative/folders")) {
    if (!entry.is_directory()) continue;
    moebius_model* model = moebius_model_load(entry.path().c_str(), nullptr);
    if (model != nullptr) {  // some are wrong for other commands only
      moebius_model_free(model);
      continue;
    }
    EXPECT_NE(field("file"), "") << entry.path() << ": " << moebius_last_error();
    EXPECT_NE(field("kind"), "") << entry.path() << ": " << moebius_last_error();
  }
}

// Holds this process to the address space that it has and `more` bytes, as long as it lives.
class AddressLimit {
 public:
  explicit AddressLimit(rlim_t more) {
    getrlimit(RLIMIT_AS, &before_);
    std::ifstream in("/proc/self/statm");
    rlim_t pages = 0;
    in >> pages;
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &now), 0);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

// A model that does not fit is refused in the tool's words, and what is loaded goes on.
TEST(ModelApi, AModelTooLargeIsRefusedBeforeItIsRead) {
  if (!test::plain_build()) GTEST_SKIP() << "sanitizers and emulators need memory of their own";
  const std::string folder = test::bundled_model_dir().string();
  moebius_model_options options{};
  options.size = sizeof options;
  options.threads = 1;
  moebius_model* model = moebius_model_load(folder.c_str(), &options);
  ASSERT_NE(model, nullptr) << moebius_last_error();
  const std::vector<int32_t> prompt{1, 2, 3};
  moebius_request r = request_of(prompt);
  r.max_tokens = 4, r.temperature = 0;
  const Said before = run_c(model, r);
  std::string in_c, kind, in_cpp;
  {
    const AddressLimit limit(20 << 20);
    if (moebius_model_load(folder.c_str(), &options) == nullptr)
      in_c = moebius_last_error(), kind = field("kind");
    try {
      llm::LoadOptions o;
      o.threads = 1;
      llm::Model::load(folder, o);
    } catch (const Error& e) {
      in_cpp = e.what();
    }
  }
  EXPECT_EQ(kind, "memory");
  for (const std::string& words : {in_c, in_cpp}) {
    EXPECT_NE(words.find("this model needs "), std::string::npos) << words;
    EXPECT_NE(words.find("(ulimit -v) are free: "), std::string::npos) << words;
  }
  EXPECT_EQ(run_c(model, r).tokens, before.tokens);
  moebius_model_free(model);
}

TEST(ModelApi, HandlesThatAreGoneAreErrors) {
  moebius_folder* folder = moebius_folder_open(test::bundled_model_dir().c_str());
  ASSERT_NE(folder, nullptr);
  auto* other = reinterpret_cast<moebius_linear*>(folder);
  EXPECT_EQ(moebius_linear_inputs(other), 0u);
  EXPECT_STREQ(moebius_last_error(), "layer is a folder; expected a linear");
  moebius_linear_free(other);  // changes nothing
  EXPECT_GT(moebius_folder_module_count(folder), 0u);
  moebius_folder_free(folder);
  EXPECT_EQ(moebius_folder_module_count(folder), 0u);
  EXPECT_STREQ(moebius_last_error(), "folder was freed");
  EXPECT_EQ(field("kind"), "state");
  moebius_folder_free(folder);  // a second time
  EXPECT_STREQ(moebius_last_error(), "folder was freed");
  int nothing = 0;
  EXPECT_EQ(moebius_folder_architecture(reinterpret_cast<moebius_folder*>(&nothing)), nullptr);
  EXPECT_STREQ(moebius_last_error(), "folder is not a handle of this library");
  moebius_engine_free(nullptr);
  EXPECT_EQ(moebius_engine_new(nullptr, nullptr), nullptr);
  EXPECT_EQ(moebius_engine_step(nullptr, nullptr, nullptr), 1);
  EXPECT_EQ(moebius_engine_idle(nullptr), 1);
  EXPECT_EQ(moebius_engine_add(nullptr, nullptr, nullptr), 1);
  EXPECT_EQ(moebius_tokenizer_encode(nullptr, nullptr, 0, 0, nullptr, 0, nullptr), 1);
  EXPECT_EQ(moebius_model_load(nullptr, nullptr), nullptr);
  EXPECT_EQ(moebius_request_init(nullptr, 8), 1);
  EXPECT_EQ(moebius_kernel_name(moebius_kernel_count()), nullptr);
  EXPECT_EQ(moebius_abi_version(), static_cast<uint32_t>(MOEBIUS_ABI));
  moebius_model_options options{};  // no size
  EXPECT_EQ(moebius_model_load(test::bundled_model_dir().c_str(), &options), nullptr);
  EXPECT_STREQ(moebius_last_error(), "moebius_model_options.size is not set");
  options.size = sizeof options;
  options.dtype = "f64";
  EXPECT_EQ(moebius_model_load(test::bundled_model_dir().c_str(), &options), nullptr);
}

TEST(ModelApi, HandlesDoNotSurviveAFork) {
  if (!test::plain_build()) GTEST_SKIP() << "a forked child confuses sanitizers and emulators";
  moebius_folder* folder = moebius_folder_open(test::bundled_model_dir().c_str());
  moebius_options options{};
  options.size = sizeof options;
  options.threads = 2;
  options.activations = MOEBIUS_F32;
  const char* module = "model.layers.0.self_attn.q_proj";
  moebius_linear* layer = moebius_linear_load(folder, module, &options);
  ASSERT_NE(layer, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    if (moebius_linear_inputs(layer) != 0 || field("kind") != "state") wrong |= 1;
    if (std::string(moebius_last_error()).find("fork()") == std::string::npos) wrong |= 2;
    moebius_linear_free(layer);
    // What is made here works, with threads of this process.
    moebius_folder* own = moebius_folder_open(test::bundled_model_dir().c_str());
    moebius_linear* mine = moebius_linear_load(own, module, &options);
    std::vector<float> x(moebius_linear_inputs(mine)), y(moebius_linear_outputs(mine));
    const moebius_input in = {sizeof in, x.data(), MOEBIUS_F32, 1, x.size(), 0};
    const moebius_output out = {sizeof out, y.data(), MOEBIUS_F32, 1, y.size(), 0};
    if (mine == nullptr || moebius_linear_run(mine, &in, &out) != 0) wrong |= 4;
    _exit(wrong);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GT(moebius_linear_inputs(layer), 0u);  // here nothing has changed
  moebius_linear_free(layer);
  moebius_folder_free(folder);
}

// A program has options with other names than the tool's.
TEST(ModelApi, MessagesNameTheOptionsOfPrograms) {
  moebius_model* model = moebius_model_load(test::bundled_model_dir().c_str(), nullptr);
  ASSERT_NE(model, nullptr) << moebius_last_error();
  const std::vector<int32_t> prompt(200, 1);
  const moebius_request r = request_of(prompt);
  moebius_engine_options options{};
  options.size = sizeof options;
  for (const char* words : {"; shorten it or raise context=", "; shorten it or raise kv_gib="}) {
    options.context = options.context == 0 ? 200 : 4096;
    options.kv_bytes = options.context == 200 ? 0 : 1 << 19;
    moebius_engine* engine = moebius_engine_new(model, &options);
    ASSERT_NE(engine, nullptr) << moebius_last_error();
    EXPECT_NE(moebius_engine_add(engine, &r, nullptr), 0);
    EXPECT_NE(std::string(moebius_last_error()).find(words), std::string::npos)
        << moebius_last_error();
    moebius_engine_free(engine);
  }
  moebius_model_free(model);
}

TEST(ModelApi, OpenRunDropLeaksNoHandles) {
  const std::string folder = golden("qwen3moe-w4a8-g32-pack");
  for (int i = 0; i < 20; ++i) {
    moebius_model* model = moebius_model_load(folder.c_str(), nullptr);
    ASSERT_NE(model, nullptr);
    moebius_engine* engine = moebius_engine_new(model, nullptr);
    ASSERT_NE(engine, nullptr) << moebius_last_error();
    moebius_model_free(model);  // the engine keeps it
    const std::vector<int32_t> prompt = {1, 2, 3};
    moebius_request r = request_of(prompt);
    r.max_tokens = 2;
    ASSERT_EQ(moebius_engine_add(engine, &r, nullptr), 0) << moebius_last_error();
    const moebius_event* events = nullptr;
    size_t count = 0;
    ASSERT_EQ(moebius_engine_step(engine, &events, &count), 0) << moebius_last_error();
    moebius_engine_free(engine);
  }
}

}  // namespace
}  // namespace moebius::model_api_test
