// SPDX-License-Identifier: Apache-2.0
// Parses expressions of chat templates with Jinja's precedence and peculiarities (a filter binds
// tighter than a sign's operand, tests take one argument without parentheses).
#include <charconv>

#include "text/jinja/parser.h"

namespace moebius::jinja {

ExprPtr Parser::tuple_or_expression() {
  ExprPtr first = expression();
  if (!current().is(",")) return first;
  auto tuple = make(Expr::Kind::kTuple, first->place);
  adopt(*tuple, std::move(first));
  while (skip(",")) {
    if (current().kind == Kind::kBlockEnd || current().kind == Kind::kVariableEnd) break;
    adopt(*tuple, expression());
  }
  return tuple;
}

// Parses operators of the same precedence, which bind to the left; `operand` parses what binds
// tighter.
ExprPtr Parser::operators(std::initializer_list<std::string_view> words, Expr::Kind kind,
                          ExprPtr (Parser::*operand)()) {
  ExprPtr left = (this->*operand)();
  for (;;) {
    if (std::none_of(words.begin(), words.end(),
                     [&](std::string_view w) { return current().is(w) || current().is_name(w); }))
      return left;
    const Token op = take();
    auto e = make(kind, op.place);
    e->text = op.text;
    adopt(*e, std::move(left));
    adopt(*e, (this->*operand)());
    left = std::move(e);
  }
}

ExprPtr Parser::condition() {
  const Deeper guard(*this);
  ExprPtr value = or_expression();
  while (current().is_name("if")) {
    auto e = make(Expr::Kind::kCondition, take().place);
    adopt(*e, or_expression());
    adopt(*e, std::move(value));
    adopt(*e, skip_name("else") ? condition() : nullptr);
    value = std::move(e);
  }
  return value;
}

ExprPtr Parser::not_expression() {
  if (!current().is_name("not")) return compare();
  const Deeper guard(*this);
  auto e = make(Expr::Kind::kNot, take().place);
  adopt(*e, not_expression());
  return e;
}

ExprPtr Parser::compare() {
  ExprPtr left = sum();
  ExprPtr chain;
  for (;;) {
    std::string op;
    const SourcePosition place = current().place;
    for (const std::string_view o : {"==", "!=", "<=", ">=", "<", ">"})
      if (op.empty() && current().is(o)) op = take().text;
    if (op.empty() && skip_name("in")) op = "in";
    if (op.empty() && current().is_name("not") && peek().is_name("in")) {
      take();
      take();
      op = "not in";
    }
    if (op.empty()) return chain ? std::move(chain) : std::move(left);
    if (!chain) {
      chain = make(Expr::Kind::kCompare, place);
      adopt(*chain, std::move(left));
    }
    chain->ops.push_back(std::move(op));
    adopt(*chain, sum());
  }
}

ExprPtr Parser::concat() {
  ExprPtr left = product();
  if (!current().is("~")) return left;
  auto e = make(Expr::Kind::kConcat, current().place);
  adopt(*e, std::move(left));
  while (skip("~")) adopt(*e, product());
  return e;
}

ExprPtr Parser::unary(bool with_filter) {
  const Deeper guard(*this);
  ExprPtr e;
  if (current().is("-") || current().is("+")) {
    const Token op = take();
    e = make(op.text == "-" ? Expr::Kind::kNegative : Expr::Kind::kPositive, op.place);
    adopt(*e, unary(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filter ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr Parser::primary() {
  const Token& t = current();
  ExprPtr e;
  const char *digits = t.text.data(), *end = digits + t.text.size();
  if (t.kind == Kind::kName) {
    static constexpr std::pair<std::string_view, Value> kConstants[] = {
        {"true", Value(true)},   {"True", Value(true)},   {"false", Value(false)},
        {"False", Value(false)}, {"none", Value::none()}, {"None", Value::none()}};
    e = make(Expr::Kind::kName, t.place);
    for (const auto& [word, constant] : kConstants)
      if (t.text == word) {
        e->kind = Expr::Kind::kConstant;
        e->constant = constant;
      }
    e->text = take().text;
  } else if (t.kind == Kind::kString) {
    e = make(Expr::Kind::kConstant, t.place);
    while (current().kind == Kind::kString) e->literal.text += take().text;
    e->constant = Value(&e->literal);
  } else if (t.kind == Kind::kInteger) {
    e = make(Expr::Kind::kConstant, t.place);
    int64_t integer = 0;
    if (std::from_chars(digits, end, integer).ec != std::errc())
      fail_here("this number is too large");
    e->constant = Value(integer);
    take();
  } else if (t.kind == Kind::kFloat) {
    e = make(Expr::Kind::kConstant, t.place);
    double number = 0;
    if (std::from_chars(digits, end, number).ec != std::errc())
      fail_here("this number is out of range");
    e->constant = Value(number);
    take();
  } else if (t.is("(")) {
    const SourcePosition place = take().place;
    auto tuple = make(Expr::Kind::kTuple, place);
    bool comma = false;
    while (!current().is(")")) {
      adopt(*tuple, expression());
      if (!skip(",")) break;
      comma = true;
    }
    expect(")");
    e = tuple->args.size() == 1 && !comma ? std::move(tuple->args[0]) : std::move(tuple);
  } else if (t.is("[") || t.is("{")) {
    e = list_or_dict();
  } else {
    fail_here("unexpected " + shown(t));
  }
  return e;
}

ExprPtr Parser::list_or_dict() {
  const Token open = take();
  const bool dict = open.text == "{";
  auto e = make(dict ? Expr::Kind::kDict : Expr::Kind::kList, open.place);
  const std::string_view close = dict ? "}" : "]";
  while (!current().is(close)) {
    adopt(*e, expression());
    if (dict) {
      expect(":");
      adopt(*e, expression());
    }
    if (!skip(",")) break;
  }
  expect(close);
  return e;
}

ExprPtr Parser::postfix(ExprPtr e) {
  for (;;) {
    if (current().is(".") || current().is("["))
      e = subscript(std::move(e));
    else if (current().is("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr Parser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (skip("|"))
      e = filter(std::move(e));
    else if (current().is_name("is"))
      e = test(std::move(e));
    else if (current().is("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr Parser::call(ExprPtr callee) {
  auto e = make(Expr::Kind::kCall, current().place);
  adopt(*e, std::move(callee));
  arguments(*e);
  return e;
}

ExprPtr Parser::subscript(ExprPtr object) {
  const Token open = take();
  if (open.text == ".") {
    const bool number = current().kind == Kind::kInteger;
    auto e = make(number ? Expr::Kind::kItem : Expr::Kind::kAttribute, open.place);
    adopt(*e, std::move(object));
    if (number)
      adopt(*e, primary());
    else
      e->text = name();
    return e;
  }
  ExprPtr parts[3];
  int colons = 0;
  while (!current().is("]")) {
    if (current().is(":")) {
      if (++colons > 2) fail_here("too many ':' in a slice");
      take();
    } else if (parts[colons]) {
      fail_here("expected ']', found " + shown(current()));
    } else {
      parts[colons] = expression();
    }
  }
  take();
  auto e = make(colons > 0 ? Expr::Kind::kSlice : Expr::Kind::kItem, open.place);
  adopt(*e, std::move(object));
  if (colons == 0 && !parts[0]) fail_at(name_, open.place, "an empty subscript");
  adopt(*e, std::move(parts[0]));
  if (colons > 0) {
    adopt(*e, std::move(parts[1]));
    adopt(*e, std::move(parts[2]));
  }
  return e;
}

void Parser::arguments(Expr& call) {
  expect("(");
  while (!current().is(")")) {
    if (current().is("*") || current().is("**")) fail_here("argument unpacking is not supported");
    if (current().kind == Kind::kName && peek().is("=")) {
      std::string key = name();
      take();
      ExprPtr value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(key), std::move(value));
    } else {
      if (!call.named.empty()) fail_here("a positional argument after a named one");
      adopt(call, expression());
    }
    if (!skip(",")) break;
  }
  expect(")");
}

ExprPtr Parser::filter(ExprPtr input) {
  auto e = make(Expr::Kind::kFilter, current().place);
  adopt(*e, std::move(input));
  e->text = name();
  while (skip(".")) e->text += "." + name();
  if (current().is("(")) arguments(*e);
  return e;
}

ExprPtr Parser::test(ExprPtr input) {
  const SourcePosition place = take().place;  // takes the word "is"
  const bool negated = skip_name("not");
  auto e = make(Expr::Kind::kTest, place);
  adopt(*e, std::move(input));
  e->text = name();
  const Token& t = current();
  const bool value = t.kind == Kind::kName || t.kind == Kind::kString || t.kind == Kind::kInteger ||
                     t.kind == Kind::kFloat || t.is("[") || t.is("{");
  if (t.is("(")) {
    arguments(*e);
  } else if (value && !t.is_name("else") && !t.is_name("or") && !t.is_name("and") &&
             !t.is_name("if")) {
    if (t.is_name("is")) fail_here("tests cannot be chained");
    adopt(*e, postfix(primary()));
  }
  if (!negated) return e;
  auto no = make(Expr::Kind::kNot, place);
  adopt(*no, std::move(e));
  return no;
}

}  // namespace moebius::jinja
