// SPDX-License-Identifier: Apache-2.0
// Evaluates expressions: names, operators, subscripts, calls. Attributes prefer methods over keys
// and subscripts prefer keys, as in Jinja.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/names.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void fail_undefined(const Value& v) {
  if (v.undefined_name() != nullptr) fail("'{}' is undefined", printable(*v.undefined_name(), 80));
  fail("a value is undefined");
}

}  // namespace

int64_t index_of(const Value& v, std::string_view what) {
  if (!v.is_integer()) fail("{} must be an integer, not '{}'", what, type_name(v));
  return v.integer();
}

std::vector<Value> bind_arguments(std::string_view function, const Arguments& args,
                                  std::string_view names) {
  std::vector<std::string_view> list;
  for (; !names.empty(); names.remove_prefix(std::min(list.back().size() + 1, names.size())))
    list.push_back(names.substr(0, names.find(' ')));
  std::vector<Value> out(list.size());
  if (args.positional.size() > list.size())
    fail("{} takes at most {} arguments, {} were given", function, list.size(),
         args.positional.size());
  std::copy(args.positional.begin(), args.positional.end(), out.begin());
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(list.begin(), list.end(), name);
    if (at == list.end()) fail("{} has no argument '{}'", function, printable(name, 60));
    out[static_cast<size_t>(at - list.begin())] = value;
  }
  return out;
}

Value Runtime::lookup(const std::string& name, Scope* scope) {
  for (; scope != nullptr; scope = scope->parent, spend_bytes(name.size() + 16))
    if (const auto it = scope->names.find(name); it != scope->names.end()) return it->second;
  return Value::undefined(&name);
}

Arguments Runtime::arguments(const Expr& e, Scope* scope) {
  Arguments out;
  for (size_t i = 1; i < e.args.size(); ++i) out.positional.push_back(eval(*e.args[i], scope));
  for (const auto& [name, value] : e.named) out.named.emplace_back(name, eval(*value, scope));
  return out;
}

Value Runtime::to_str(const Value& v) {
  if (v.is_string()) return v;
  StrBuilder out;
  write_str(v, out);
  return heap_.string(out.take());
}

std::vector<Value> Runtime::elements(const Value& v) {
  std::vector<Value> out;
  if (v.is_undefined()) return out;
  if (v.has_items()) {
    out = v.list().items;
  } else if (v.is(Kind::kGenerator)) {
    out.swap(v.list().items);
  } else if (v.is(Kind::kDict)) {
    for (const auto& item : v.dict().items) out.push_back(item.first);
  } else if (v.is_string()) {
    const Str& s = v.str();
    for (size_t i = 0, n = 0; i < s.text.size(); i += n) {
      n = unicode::decode(s.text.data() + i).length;
      out.push_back(heap_.string(substr(s, i, i + n)));
    }
  } else {
    fail("'{}' object is not iterable", type_name(v));
  }
  heap_.charge(out.size() * sizeof(Value));
  spend(out.size() / 4 + 1);
  return out;
}

Value Runtime::loop_attribute(Loop& loop, const std::string& name) {
  const auto n = static_cast<int64_t>(loop.items->size()), i = static_cast<int64_t>(loop.index);
  if (name == "index") return Value(i + 1);
  if (name == "index0") return Value(i);
  if (name == "revindex") return Value(n - i);
  if (name == "revindex0") return Value(n - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i + 1 == n);
  if (name == "length") return Value(n);
  // Jinja counts recursion of loops, which this engine does not have.
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return i > 0 ? (*loop.items)[loop.index - 1] : Value::undefined(&name);
  if (name == "nextitem")
    return i + 1 < n ? (*loop.items)[loop.index + 1] : Value::undefined(&name);
  return Value::undefined(&name);
}

Value Runtime::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) fail_undefined(object);
  if (find_method(object, name) != nullptr)
    return Value(heap_.function({Function::Kind::kMethod, name, object}));
  if (object.is(Kind::kLoop)) return loop_attribute(object.loop(), name);
  if (object.is(Kind::kDict) || object.is(Kind::kNamespace))
    if (const Value* v = object.dict().find(std::string_view(name))) return *v;
  return Value::undefined(&name);
}

Value Runtime::item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  static const std::string kMissing = "item";
  if (object.is(Kind::kDict)) {
    spend(key.is_string() ? 1 : object.dict().items.size() / 4 + 1);
    if (const Value* v = object.dict().find(key)) return *v;
  } else if (key.is_integer() && (object.is_sequence() || object.is_string())) {
    const auto n = static_cast<int64_t>(object.is_string() ? count_chars(object.str().text)
                                                           : object.list().items.size());
    int64_t i = key.integer();
    if (i < 0) i += n;
    if (i < 0 || i >= n) return Value::undefined(&kMissing);
    if (!object.is_string()) return object.list().items[static_cast<size_t>(i)];
    const Str& s = object.str();
    spend(s.text.size() / 64);
    const size_t at = char_offset(s.text, static_cast<size_t>(i));
    return heap_.string(substr(s, at, at + unicode::decode(s.text.data() + at).length));
  }
  if (key.is_string()) {
    const std::string& name = key.str().text;
    const bool attribute_exists =
        find_method(object, name) != nullptr || object.is(Kind::kLoop) ||
        (object.is(Kind::kNamespace) && object.dict().find(std::string_view(name)));
    return attribute_exists ? attribute(object, name) : Value::undefined(&name);
  }
  return Value::undefined(&kMissing);
}

Value Runtime::eval_slice(const Expr& e, Scope* scope) {
  const Value object = eval(*e.args[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    bounds[i] = e.args[i + 1] ? eval(*e.args[i + 1], scope) : Value::none();
  place_ = e.place;
  if (object.is_undefined()) fail_undefined(object);
  if (!object.is_string() && !object.is_sequence())
    fail("'{}' object cannot be sliced", type_name(object));
  const auto n = static_cast<int64_t>(object.is_string() ? count_chars(object.str().text)
                                                         : object.list().items.size());
  const int64_t step = bounds[2].is_none() ? 1 : index_of(bounds[2], "a slice step");
  if (step == 0) fail("slice step cannot be zero");
  const auto clamp = [&](const Value& v, int64_t absent) {
    if (v.is_none()) return absent;
    int64_t i = index_of(v, "a slice bound");
    if (i < 0) i = i < -n ? -1 : i + n;
    return std::clamp<int64_t>(i, step > 0 ? 0 : -1, step > 0 ? n : n - 1);
  };
  const int64_t begin = clamp(bounds[0], step > 0 ? 0 : n - 1),
                end = clamp(bounds[1], step > 0 ? n : -1);
  if (object.is_string() && step == 1) {
    const std::string& text = object.str().text;
    spend(text.size() / 64);
    const size_t from = char_offset(text, static_cast<size_t>(begin));
    const size_t to = end > begin ? from + char_offset(std::string_view(text).substr(from),
                                                       static_cast<size_t>(end - begin))
                                  : from;
    return heap_.string(substr(object.str(), from, to));
  }
  const std::vector<Value> all = elements(object);
  std::vector<Value> picked;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    picked.push_back(all[static_cast<size_t>(i)]);
    if (step > n || step < -n) break;
  }
  if (!object.is_string()) {
    const Value out = heap_.list(std::move(picked), object.kind());
    const List& from = object.list();
    if (object.is(Kind::kRange)) {
      // Only shown and never computed with, so it may wrap.
      const auto at = [&](int64_t k) {
        return static_cast<int64_t>(static_cast<uint64_t>(from.start) +
                                    static_cast<uint64_t>(k) * static_cast<uint64_t>(from.step));
      };
      out.list().start = at(begin);
      out.list().stop = at(end);
      if (__builtin_mul_overflow(from.step, step, &out.list().step))
        fail("a slice step is too large");
    }
    return out;
  }
  StrBuilder out;
  for (const Value& v : picked) out.add(v.str());
  return heap_.string(out.take());
}

bool Runtime::contains(const Value& container, const Value& v) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!v.is_string()) fail("'in <string>' requires a string on the left, not '{}'", type_name(v));
    spend_search(container.str().text, v.str().text);
    return container.str().text.find(v.str().text) != std::string::npos;
  }
  if (container.is(Kind::kDict)) {
    check_hashable(v);
    return container.dict().find(v) != nullptr;
  }
  if (!container.has_items() && !container.is(Kind::kGenerator))
    fail("argument of type '{}' is not iterable", type_name(container));
  if (container.is(Kind::kView) && container.list().view == "dict_keys") check_hashable(v);
  const std::vector<Value> all = elements(container);
  return std::any_of(all.begin(), all.end(), [&](const Value& x) { return equal(x, v); });
}

bool Runtime::compare_op(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  for (const Value& v : {a, b})
    if (v.is_undefined()) fail_undefined(v);
  if (a.is_number() && b.is_number() && (std::isnan(a.number()) || std::isnan(b.number())))
    return false;
  const int c = compare(a, b);
  return op == "<" ? c < 0 : op == "<=" ? c <= 0 : op == ">" ? c > 0 : c >= 0;
}

Value Runtime::eval_compare(const Expr& e, Scope* scope) {
  Value left = eval(*e.args[0], scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    const Value right = eval(*e.args[i + 1], scope);
    place_ = e.place;
    if (!compare_op(e.ops[i], left, right)) return Value(false);
    left = right;
  }
  return Value(true);
}

Value Runtime::repeat(const Value& v, int64_t times) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const uint64_t one = v.is_string() ? v.str().text.size() : v.list().items.size();
  if (one != 0 && n > (uint64_t{1} << 28) / one)
    fail("a repetition of {} times is too long", times);
  if (v.is_string()) {
    StrBuilder out;
    for (uint64_t i = 0; i < n && one > 0; ++i) out.add(v.str());
    return heap_.string(out.take());
  }
  heap_.charge(n * one * sizeof(Value));
  std::vector<Value> out;
  for (uint64_t i = 0; i < n && one > 0; ++i)
    out.insert(out.end(), v.list().items.begin(), v.list().items.end());
  return heap_.list(std::move(out), v.kind());
}

Value Runtime::binary(const std::string& op, const Value& a, const Value& b) {
  for (const Value& v : {a, b})
    if (v.is_undefined()) fail_undefined(v);
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == "+" && a.is_string() && b.is_string()) {
    StrBuilder out;
    out.add(a.str());
    out.add(b.str());
    return heap_.string(out.take());
  }
  if (op == "+" && a.is_sequence() && a.kind() == b.kind() && !a.is(Kind::kRange)) {
    std::vector<Value> all = a.list().items;
    all.insert(all.end(), b.list().items.begin(), b.list().items.end());
    return heap_.list(std::move(all), a.kind());
  }
  if (op == "*" && (a.is_string() || a.is(Kind::kList) || a.is(Kind::kTuple)) && b.is_integer())
    return repeat(a, b.integer());
  if (op == "*" && (b.is_string() || b.is(Kind::kList) || b.is(Kind::kTuple)) && a.is_integer())
    return repeat(b, a.integer());
  if (op == "%" && a.is_string())
    return percent_format(*this, a.str(),
                          b.is(Kind::kTuple) ? b.list().items : std::vector<Value>{b});
  fail("unsupported operand types for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

Value Runtime::eval_condition(const Expr& e, Scope* scope) {
  if (truth(eval(*e.args[0], scope))) return eval(*e.args[1], scope);
  static const std::string kName = "inline if without else";
  return e.args[2] ? eval(*e.args[2], scope) : Value::undefined(&kName);
}

Value Runtime::eval_call(const Expr& e, Scope* scope) {
  const Value callee = eval(*e.args[0], scope);
  Arguments args = arguments(e, scope);
  place_ = e.place;
  const Value out = call(callee, std::move(args));
  place_ = e.place;
  return out;
}

Value Runtime::eval(const Expr& e, Scope* scope) {
  spend();
  switch (e.kind) {
    case Expr::Kind::kName:
      return lookup(e.text, scope);
    case Expr::Kind::kConstant:
      return e.constant;
    default:
      break;
  }
  const Deeper guard(*this);
  switch (e.kind) {
    case Expr::Kind::kNot:
      return Value(!truth(eval(*e.args[0], scope)));
    case Expr::Kind::kAnd: {
      const Value left = eval(*e.args[0], scope);
      return truth(left) ? eval(*e.args[1], scope) : left;
    }
    case Expr::Kind::kOr: {
      const Value left = eval(*e.args[0], scope);
      return truth(left) ? left : eval(*e.args[1], scope);
    }
    case Expr::Kind::kCompare:
      return eval_compare(e, scope);
    case Expr::Kind::kCondition:
      return eval_condition(e, scope);
    case Expr::Kind::kSlice:
      return eval_slice(e, scope);
    case Expr::Kind::kCall:
      return eval_call(e, scope);
    default:
      return eval_simple(e, scope);
  }
}

// Evaluates expressions whose operands are all evaluated first.
Value Runtime::eval_simple(const Expr& e, Scope* scope) {
  if (e.kind == Expr::Kind::kFilter || e.kind == Expr::Kind::kTest) {
    const Value input = eval(*e.args[0], scope);
    const Arguments args = arguments(e, scope);
    place_ = e.place;
    return e.kind == Expr::Kind::kFilter ? filter(e.text, input, args)
                                         : Value(test(e.text, input, args));
  }
  std::vector<Value> v;
  for (const ExprPtr& a : e.args) v.push_back(eval(*a, scope));
  place_ = e.place;
  switch (e.kind) {
    case Expr::Kind::kList:
      return heap_.list(std::move(v));
    case Expr::Kind::kTuple:
      return heap_.list(std::move(v), Kind::kTuple);
    case Expr::Kind::kDict: {
      Dict* d = heap_.dict();
      for (size_t i = 0; i + 1 < v.size(); i += 2) {
        check_hashable(v[i]);
        d->set(v[i], v[i + 1]);
      }
      heap_.charge(v.size() * sizeof(Value));
      return Value(d);
    }
    case Expr::Kind::kAttribute:
      return attribute(v[0], e.text);
    case Expr::Kind::kItem:
      return item(v[0], v[1]);
    case Expr::Kind::kBinary: {
      // In a + b + c nothing else refers to the text of a + b: it is extended in place, so that a
      // long text is not copied.
      const Expr& left = *e.args[0];
      if (e.text == "+" && left.kind == Expr::Kind::kBinary && left.text == "+" &&
          v[0].is_string() && v[1].is_string())
        return heap_.append(v[0], v[1].str());
      return binary(e.text, v[0], v[1]);
    }
    case Expr::Kind::kNegative:
      return v[0].is(Kind::kFloat) ? Value(-v[0].number())
                                   : arithmetic("-", Value(int64_t{0}), v[0]);
    case Expr::Kind::kPositive:
      return arithmetic("+", Value(int64_t{0}), v[0]);
    case Expr::Kind::kConcat: {
      StrBuilder out;
      for (const Value& part : v) write_str(part, out);
      return heap_.string(out.take());
    }
    default:
      fail("this expression cannot be evaluated");
  }
}

// --- calls ---------------------------------------------------------------------------------------

Value Runtime::call(const Value& callee, Arguments args) {
  if (callee.is_undefined()) fail_undefined(callee);
  if (!callee.is(Kind::kFunction)) fail("'{}' object is not callable", type_name(callee));
  Function& f = callee.function();
  switch (f.kind) {
    case Function::Kind::kMethod:
      return call_method(f.self, f.name, args);
    case Function::Kind::kMacro:
      return call_macro(f, std::move(args));
    default:
      return find_builtin(Named::kFunction, f.name)->call(*this, Value(), f.name, args);
  }
}

Value Runtime::call_macro(Function& f, Arguments args) {
  const Deeper guard(*this);
  static const std::string kCaller = "caller";
  const auto& parameters = f.macro->parameters;
  Scope* scope = heap_.scope(f.scope);
  if (args.positional.size() > parameters.size())
    fail("macro '{}' takes at most {} arguments, {} were given", printable(f.name, 60),
         parameters.size(), args.positional.size());
  for (size_t i = 0; i < args.positional.size(); ++i)
    scope->names.insert_or_assign(parameters[i].name, args.positional[i]);
  for (const auto& argument : args.named) {
    const std::string& name = argument.first;
    const Value& value = argument.second;
    const auto p = std::find_if(parameters.begin(), parameters.end(),
                                [&](const Parameter& q) { return q.name == name; });
    if (p != parameters.end())
      scope->names.insert_or_assign(p->name, value);
    else if (name == kCaller)
      scope->names.insert_or_assign(kCaller, value);
    else
      fail("macro '{}' has no argument '{}'", printable(f.name, 60), printable(name, 60));
  }
  for (const Parameter& p : parameters)
    if (!scope->names.contains(p.name))
      scope->names.insert_or_assign(p.name,
                                    p.absent ? eval(*p.absent, scope) : Value::undefined(&p.name));
  StrBuilder out;
  run(f.macro->body, scope, out);
  return heap_.string(out.take());
}

}  // namespace moebius::jinja
