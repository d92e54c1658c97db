// SPDX-License-Identifier: Apache-2.0
// Runs statements. A loop body, a macro, a with block and a block set have their own scope of
// names; an if has none.
#include "text/jinja/run.h"

#include "base/error.h"
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

constexpr int kMaxDepth = 1200;  // levels of nested evaluation, macros included
using Kind = Value::Kind;

}  // namespace

Runtime::Deeper::Deeper(Runtime& r) : runtime(r) {
  if (++runtime.depth_ > kMaxDepth) {
    --runtime.depth_;
    fail("the template recurses too deeply");
  }
}

Runtime::Runtime(std::string name, const Limits& limits, std::optional<int64_t> now)
    : name_(std::move(name)),
      limits_(limits),
      heap_(limits.memory),
      globals_(heap_.scope(nullptr)),
      now_(now) {
  set_budget(limits_.steps, limits_.time);
  for (const NamedBuiltin& b : builtin_names()) {
    if (b.kind != Named::kFunction) continue;
    globals_->names.emplace(b.name,
                            heap_.function({Function::Kind::kBuiltin, std::string(b.name), {}}));
  }
}

void Runtime::define(const std::string& name, Value value) {
  globals_->names.insert_or_assign(name, value);
}

Str Runtime::render(const Block& block, size_t expected_bytes) {
  StrBuilder out;
  out.reserve(expected_bytes + expected_bytes / 8);  // so that a long text is not moved
  try {
    run(block, heap_.scope(globals_), out);
  } catch (const Error& e) {
    const std::string message = e.what();
    if (message.starts_with(name_ + ", line ")) throw;
    fail_at(name_, place_, message);
  }
  return out.take();
}

void Runtime::emit(const Value& v, StrBuilder& out) {
  write_str(v, out);
  if (out.size() > limits_.output)
    fail("the template writes more than {} MB", limits_.output >> 20);
}

Runtime::Flow Runtime::run(const Block& block, Scope* scope, StrBuilder& out) {
  const Deeper guard(*this);
  for (const auto& s : block)
    if (const Flow flow = run(*s, scope, out); flow != Flow::kNormal) return flow;
  return Flow::kNormal;
}

Runtime::Flow Runtime::run(const Stmt& s, Scope* scope, StrBuilder& out) {
  spend();
  place_ = s.place;
  switch (s.kind) {
    case Stmt::Kind::kText:
      out.add(s.text);
      if (out.size() > limits_.output)
        fail("the template writes more than {} MB", limits_.output >> 20);
      return Flow::kNormal;
    case Stmt::Kind::kPrint:
      emit(eval(*s.value, scope), out);
      return Flow::kNormal;
    case Stmt::Kind::kIf:
      for (const auto& [test, body] : s.branches)
        if (!test || truth(eval(*test, scope))) return run(body, scope, out);
      return Flow::kNormal;
    case Stmt::Kind::kFor:
      return run_for(s, scope, out);
    case Stmt::Kind::kSet:
    case Stmt::Kind::kSetBlock:
      run_set(s, scope, out);
      return Flow::kNormal;
    case Stmt::Kind::kMacro:
      scope->names.insert_or_assign(
          s.text, heap_.function({Function::Kind::kMacro, s.text, {}, &s, scope}));
      return Flow::kNormal;
    case Stmt::Kind::kCallBlock: {
      const Value callee = eval(*s.value->args[0], scope);
      Arguments args = arguments(*s.value, scope);
      args.named.emplace_back("caller",
                              heap_.function({Function::Kind::kMacro, "caller", {}, &s, scope}));
      emit(call(callee, std::move(args)), out);
      return Flow::kNormal;
    }
    case Stmt::Kind::kFilterBlock:
      emit(captured(s, scope), out);
      return Flow::kNormal;
    case Stmt::Kind::kWith: {
      Scope* inner = heap_.scope(scope);
      for (const Parameter& p : s.parameters) {
        const Value v = eval(*p.absent, scope);
        inner->names.insert_or_assign(p.name, v);
      }
      return run(s.body, inner, out);
    }
    case Stmt::Kind::kGroup:
      return run(s.body, scope, out);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Runtime::unpack(const std::vector<std::string>& targets, const Value& value, Scope* scope) {
  if (targets.size() == 1) {
    scope->names.insert_or_assign(targets[0], value);
    return;
  }
  const std::vector<Value> parts = elements(value);
  if (parts.size() != targets.size())
    fail("cannot unpack {} values into {} names", parts.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) scope->names.insert_or_assign(targets[i], parts[i]);
}

Runtime::Flow Runtime::run_for(const Stmt& s, Scope* scope, StrBuilder& out) {
  static const std::string kLoopName = "loop";
  std::vector<Value> items = elements(eval(*s.value, scope));
  if (s.condition) {
    std::vector<Value> kept;
    for (const Value& v : items) {
      Scope* inner = heap_.scope(scope);
      unpack(s.targets, v, inner);
      if (truth(eval(*s.condition, inner))) kept.push_back(v);
    }
    items = std::move(kept);
  }
  // "else" also runs, as in Jinja, when break or continue cut every pass short.
  bool completed = false;
  // A copy, because a macro defined in the body may keep the loop.
  const Value kept = heap_.list(std::move(items));
  Loop* loop = heap_.loop();
  loop->items = &kept.list().items;
  for (size_t i = 0; i < loop->items->size(); ++i) {
    spend();
    loop->index = i;
    Scope* inner = heap_.scope(scope);
    inner->names.emplace(kLoopName, Value(loop));
    unpack(s.targets, (*loop->items)[i], inner);
    const Flow flow = run(s.body, inner, out);
    completed = completed || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  return completed ? Flow::kNormal : run(s.otherwise, scope, out);
}

// Returns the body's text after the filters.
Value Runtime::captured(const Stmt& s, Scope* scope) {
  StrBuilder body;
  Scope* inner = heap_.scope(scope);
  run(s.body, inner, body);
  Value v = heap_.string(body.take());
  for (const ExprPtr& f : s.filters) v = filter(f->text, v, arguments(*f, scope));
  return v;
}

void Runtime::run_set(const Stmt& s, Scope* scope, StrBuilder&) {
  const Value value = s.kind == Stmt::Kind::kSet ? eval(*s.value, scope) : captured(s, scope);
  if (!s.sets_attribute) return unpack(s.targets, value, scope);
  place_ = s.place;
  const Value object = lookup(s.targets[0], scope);
  if (!object.is(Kind::kNamespace))
    fail("cannot set an attribute of '{}': only namespaces have settable attributes", s.targets[0]);
  object.dict().set(heap_.string(s.targets[1]), value);
  heap_.charge(32);
}

}  // namespace moebius::jinja
