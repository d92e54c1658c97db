// SPDX-License-Identifier: Apache-2.0
// Parses chat templates; implemented in one unit for statements and one for expressions.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja/ast.h"

namespace moebius::jinja {

class Parser {
  using Kind = Token::Kind;
  static constexpr uint32_t kMaxDepth = 200;

 public:
  Parser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}
  Block run() {
    Block out = block({});
    if (current().kind != Kind::kEnd) unexpected_tag();
    return out;
  }

 private:
  // --- statements ---
  Block block(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Stmt> statement();
  std::unique_ptr<Stmt> if_statement();
  std::unique_ptr<Stmt> for_statement();
  std::unique_ptr<Stmt> set_statement();
  std::unique_ptr<Stmt> macro_statement(bool call);
  std::unique_ptr<Stmt> with_statement();
  std::vector<Parameter> parameters();
  std::vector<ExprPtr> filter_chain();
  void body(Stmt& s, std::string_view end);
  void end_tag(std::string_view name);
  [[noreturn]] void unexpected_tag();

  // --- expressions, from the lowest precedence on ---
  ExprPtr tuple_or_expression();
  ExprPtr expression() { return condition(); }
  ExprPtr operators(std::initializer_list<std::string_view> words, Expr::Kind kind,
                    ExprPtr (Parser::*operand)());
  ExprPtr condition();
  ExprPtr or_expression() { return operators({"or"}, Expr::Kind::kOr, &Parser::and_expression); }
  ExprPtr and_expression() { return operators({"and"}, Expr::Kind::kAnd, &Parser::not_expression); }
  ExprPtr not_expression();
  ExprPtr compare();
  ExprPtr sum() { return operators({"+", "-"}, Expr::Kind::kBinary, &Parser::concat); }
  ExprPtr concat();
  ExprPtr product() {
    return operators({"*", "/", "//", "%"}, Expr::Kind::kBinary, &Parser::power);
  }
  ExprPtr power() { return operators({"**"}, Expr::Kind::kBinary, &Parser::operand); }
  ExprPtr operand() { return unary(true); }
  ExprPtr unary(bool with_filter);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr e);
  ExprPtr filters_and_tests(ExprPtr e);
  ExprPtr subscript(ExprPtr e);
  ExprPtr call(ExprPtr callee);
  ExprPtr filter(ExprPtr e);
  ExprPtr test(ExprPtr e);
  ExprPtr list_or_dict();
  void arguments(Expr& call);

  const Token& current() const { return tokens_[pos_]; }
  const Token& peek() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool skip(std::string_view op) {
    const bool yes = current().is(op);
    if (yes) take();
    return yes;
  }
  bool skip_name(std::string_view name) {
    const bool yes = current().is_name(name);
    if (yes) take();
    return yes;
  }
  std::string shown(const Token& t) const {
    switch (t.kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kBlockEnd:
        return "'%}'";
      case Kind::kVariableEnd:
        return "'}}'";
      default:
        return "'" + printable(t.text, 60) + "'";
    }
  }
  [[noreturn]] void fail_here(const std::string& message) {
    fail_at(name_, current().place, message);
  }
  void expect(std::string_view op) {
    if (!skip(op)) fail_here(fmt::format("expected '{}', found {}", op, shown(current())));
  }
  std::string name() {
    if (current().kind != Kind::kName) fail_here("expected a name, found " + shown(current()));
    return take().text;
  }
  void block_end() {
    if (current().kind != Kind::kBlockEnd) fail_here("expected '%}', found " + shown(current()));
    take();
  }
  ExprPtr make(Expr::Kind kind, SourcePosition place) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->place = place;
    return e;
  }
  void adopt(Expr& parent, ExprPtr child) {
    if (child) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > kMaxDepth)
        fail_at(name_, parent.place, fmt::format("expressions nested deeper than {}", kMaxDepth));
    }
    parent.args.push_back(std::move(child));
  }
  std::unique_ptr<Stmt> make_statement(Stmt::Kind kind, SourcePosition place) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->place = place;
    return s;
  }
  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth)
        parser.fail_here(fmt::format("nested deeper than {}", kMaxDepth));
    }
    ~Deeper() { --parser.depth_; }
    Parser& parser;
  };

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t pos_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace moebius::jinja
