// SPDX-License-Identifier: Apache-2.0
// Parses statements of chat templates.
#include "text/jinja/parser.h"

namespace moebius::jinja {

// Parses statements up to a tag whose name is in `ends`; that name stays unread after "{%".
Block Parser::block(std::initializer_list<std::string_view> ends) {
  const Deeper guard(*this);
  Block out;
  for (;;) {
    const Token& t = current();
    if (t.kind == Kind::kEnd) {
      if (ends.size() > 0)
        fail_here(fmt::format("the template ends, but '{}' is missing", *(ends.end() - 1)));
      return out;
    }
    if (t.kind == Kind::kText) {
      out.push_back(make_statement(Stmt::Kind::kText, t.place));
      out.back()->text = take().text;
    } else if (t.kind == Kind::kVariableBegin) {
      const SourcePosition place = take().place;
      out.push_back(make_statement(Stmt::Kind::kPrint, place));
      out.back()->value = tuple_or_expression();
      if (current().kind != Kind::kVariableEnd)
        fail_here("expected '}}', found " + shown(current()));
      take();
    } else {
      for (const std::string_view end : ends)
        if (peek().is_name(end)) {
          take();
          return out;
        }
      out.push_back(statement());
    }
  }
}

void Parser::unexpected_tag() { fail_here("unexpected " + shown(current())); }

void Parser::end_tag(std::string_view end) {
  if (!skip_name(end)) fail_here(fmt::format("expected '{}', found {}", end, shown(current())));
  if (end == "endmacro" && current().kind == Kind::kName) take();
  block_end();
}

// Parses the end of the statement's tag, its body and the tag that ends it.
void Parser::body(Stmt& s, std::string_view end) {
  block_end();
  s.body = block({end});
  end_tag(end);
}

std::unique_ptr<Stmt> Parser::statement() {
  take();  // takes "{%"
  const Token& t = current();
  if (t.kind != Kind::kName) fail_here("expected the name of a tag, found " + shown(t));
  if (t.text == "if") return if_statement();
  if (t.text == "for") return for_statement();
  if (t.text == "set") return set_statement();
  if (t.text == "macro") return macro_statement(false);
  if (t.text == "call") return macro_statement(true);
  if (t.text == "with") return with_statement();
  if (t.text == "generation") {
    auto s = make_statement(Stmt::Kind::kGroup, take().place);
    body(*s, "endgeneration");
    return s;
  }
  if (t.text == "filter") {
    auto s = make_statement(Stmt::Kind::kFilterBlock, take().place);
    s->filters = filter_chain();
    body(*s, "endfilter");
    return s;
  }
  if (t.text == "break" || t.text == "continue") {
    auto s =
        make_statement(t.text == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue, t.place);
    take();
    block_end();
    return s;
  }
  fail_here(fmt::format("tag '{}' is not supported", printable(t.text, 60)));
}

std::unique_ptr<Stmt> Parser::if_statement() {
  auto s = make_statement(Stmt::Kind::kIf, take().place);
  ExprPtr test = tuple_or_expression();
  block_end();
  for (;;) {
    Block body = block({"elif", "else", "endif"});
    s->branches.emplace_back(std::move(test), std::move(body));
    if (skip_name("elif")) {
      test = tuple_or_expression();
      block_end();
    } else if (skip_name("else")) {
      block_end();
      s->branches.emplace_back(nullptr, block({"endif"}));
      break;
    } else {
      break;
    }
  }
  end_tag("endif");
  return s;
}

std::unique_ptr<Stmt> Parser::for_statement() {
  auto s = make_statement(Stmt::Kind::kFor, take().place);
  const bool parentheses = skip("(");
  do {
    if (current().is_name("in") || current().is(")")) break;
    s->targets.push_back(name());
  } while (skip(","));
  if (parentheses) expect(")");
  if (s->targets.empty()) fail_here("expected a loop variable");
  if (!skip_name("in")) fail_here("expected 'in', found " + shown(current()));
  // The iterable ends before "if", which begins a condition of the loop and not an inline one.
  s->value = or_expression();
  if (current().is(",")) {
    auto tuple = make(Expr::Kind::kTuple, s->value->place);
    adopt(*tuple, std::move(s->value));
    while (skip(",")) adopt(*tuple, or_expression());
    s->value = std::move(tuple);
  }
  if (skip_name("if")) s->condition = expression();
  if (current().is_name("recursive")) fail_here("recursive loops are not supported");
  block_end();
  s->body = block({"else", "endfor"});
  if (skip_name("else")) {
    block_end();
    s->otherwise = block({"endfor"});
  }
  end_tag("endfor");
  return s;
}

std::vector<ExprPtr> Parser::filter_chain() {
  std::vector<ExprPtr> out;
  do out.push_back(filter(nullptr));
  while (skip("|"));
  return out;
}

std::unique_ptr<Stmt> Parser::set_statement() {
  auto s = make_statement(Stmt::Kind::kSet, take().place);
  const bool parentheses = skip("(");
  s->targets.push_back(name());
  if (skip(".")) {
    s->sets_attribute = true;
    s->targets.push_back(name());
  } else {
    while (skip(",")) {
      if (current().is("=") || current().is(")")) break;
      s->targets.push_back(name());
    }
  }
  if (parentheses) expect(")");
  if (skip("=")) {
    s->value = tuple_or_expression();
    block_end();
    return s;
  }
  if (!s->sets_attribute && s->targets.size() != 1)
    fail_here("expected '=', found " + shown(current()));
  s->kind = Stmt::Kind::kSetBlock;
  if (skip("|")) s->filters = filter_chain();
  body(*s, "endset");
  return s;
}

std::vector<Parameter> Parser::parameters() {
  std::vector<Parameter> out;
  expect("(");
  while (!current().is(")")) {
    Parameter p{name(), nullptr};
    if (skip("="))
      p.absent = expression();
    else if (!out.empty() && out.back().absent)
      fail_here("a parameter without a default after one with a default");
    out.push_back(std::move(p));
    if (!skip(",")) break;
  }
  expect(")");
  return out;
}

std::unique_ptr<Stmt> Parser::macro_statement(bool call) {
  auto s = make_statement(call ? Stmt::Kind::kCallBlock : Stmt::Kind::kMacro, take().place);
  if (call) {
    if (current().is("(")) s->parameters = parameters();
    s->value = expression();
    if (s->value->kind != Expr::Kind::kCall) fail_here("expected a call");
  } else {
    s->text = name();
    s->parameters = parameters();
  }
  body(*s, call ? "endcall" : "endmacro");
  return s;
}

std::unique_ptr<Stmt> Parser::with_statement() {
  auto s = make_statement(Stmt::Kind::kWith, take().place);
  while (current().kind == Kind::kName) {
    Parameter p{name(), nullptr};
    expect("=");
    p.absent = expression();
    s->parameters.push_back(std::move(p));
    if (!skip(",")) break;
  }
  body(*s, "endwith");
  return s;
}

Block parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace moebius::jinja
