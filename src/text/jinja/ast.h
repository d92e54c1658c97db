// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a chat template. The parser limits the depth of expressions and blocks, so
// that recursion over the tree is safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/value.h"

namespace moebius::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kConstant,
    kName,
    kList,
    kTuple,      // elements: args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // the attribute args[0].text
    kItem,       // the item args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]], null if absent
    kCall,       // the call args[0](args[1...], named)
    kFilter,
    kTest,  // args[0] | text(args[1...], named)
    kNot,
    kNegative,
    kPositive,
    kBinary,   // args[0] text args[1]
    kCompare,  // args[0] ops[0] args[1] ops[1] args[2] ...
    kAnd,
    kOr,
    kConcat,     // args joined with ~
    kCondition,  // args[1] if args[0] else args[2] (may be null)
  };
  Kind kind = Kind::kConstant;
  SourcePosition place;
  uint32_t depth = 1;
  std::string text;
  Value constant;
  Str literal;  // text of a constant string, to which `constant` points
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> ops;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Parameter {
  std::string name;
  ExprPtr absent;  // default value of the parameter, or null
};

struct Stmt {
  enum class Kind : uint8_t {
    kText,
    kPrint,
    kIf,
    kFor,
    kSet,
    kSetBlock,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kWith,
    kGroup,
    kBreak,
    kContinue
  };
  Kind kind = Kind::kText;
  SourcePosition place;
  std::string text;   // kText; name of a kMacro
  ExprPtr value;      // expression that is printed, assigned, iterated or called
  ExprPtr condition;  // kFor: the condition after "if", or null
  // kFor, kSet: names; kSet with an attribute: object and attribute.
  std::vector<std::string> targets;
  bool sets_attribute = false;
  std::vector<std::pair<ExprPtr, Block>> branches;  // kIf: condition (null: else) and body
  std::vector<Parameter> parameters;                // parameters of kMacro, kCallBlock and kWith
  std::vector<ExprPtr> filters;  // kSetBlock, kFilterBlock: filters, with args[0] null
  Block body, otherwise;         // kFor: `otherwise` is the else block
};

// Parses a template. Throws Error with line and column for all unsupported syntax.
Block parse(std::string_view source, const std::string& name);

}  // namespace moebius::jinja
