#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON schemas at random, of the keywords that structured output keeps: for measurements and checks of many schemas.

    schemas.py FOLDER [COUNT]      writes COUNT (2,000) schemas to FOLDER/0000.json, ...; equal in every run
"""
import json
import random
import sys
from pathlib import Path

NAMES = ["name", "age", "id", "title", "tags", "kind", "price", "items", "city", "country", "email", "created_at", "is_active", "x", "y",
         "first name", "größe", "a\"b", "street", "count"]
FORMATS = ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
PATTERNS = ["^[a-z]{1,8}$", "^[A-Z]{2}-[0-9]{3}$", "^(red|green|blue)$", "^\\d{4}$", "^[^\\s]{2,6}$", "^a+b?c*$", "[0-9]{2}"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.defs = {}

    def string(self):
        r = self.random.random()
        if r < 0.35:
            return {"type": "string", "maxLength": self.random.choice([1, 3, 10, 40])}
        if r < 0.5:
            low = self.random.randint(0, 4)
            return {"type": "string", "minLength": low, "maxLength": low + self.random.randint(0, 12)}
        if r < 0.7:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if r < 0.9:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        return {"type": "string"}

    def number(self):
        s = {"type": self.random.choice(["integer", "number"])}
        r = self.random.random()
        if r < 0.3:
            s["minimum"] = self.random.randint(-50, 50)
        if 0.2 < r < 0.5:
            s["maximum"] = s.get("minimum", 0) + self.random.randint(0, 1000)
        if 0.5 < r < 0.6:
            s["exclusiveMinimum"] = self.random.choice([-1.5, 0, 10])
            s["exclusiveMaximum"] = s["exclusiveMinimum"] + self.random.choice([1.5, 3, 100])
        if r > 0.9:
            s = {"type": "integer", "multipleOf": self.random.choice([2, 5, 7, 100])}
        return s

    def constant(self):
        values = ["red", "green", "", "a\nb", 1, -2.5, 0, True, None, {"k": [1, "v"]}, [], "ü"]
        if self.random.random() < 0.3:
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randint(1, 6))}

    def array(self, depth):
        s = {"type": "array", "items": self.schema(depth - 1)}
        if self.random.random() < 0.7:
            s["maxItems"] = self.random.randint(1, 4)
        if self.random.random() < 0.3:
            s["minItems"] = self.random.randint(0, s.get("maxItems", 2))
        if self.random.random() < 0.2:
            s["prefixItems"] = [self.schema(depth - 1)]
        return s

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(0, 6))
        s = {"type": "object", "properties": {n: self.schema(depth - 1) for n in names}}
        s["required"] = [n for n in names if self.random.random() < 0.6]
        r = self.random.random()
        if r < 0.7:
            s["additionalProperties"] = False
        elif r < 0.8:
            s["additionalProperties"] = self.schema(0)
        elif r < 0.9:
            s["patternProperties"] = {"^z": self.schema(0)}
            s["additionalProperties"] = False
        return s

    def schema(self, depth):
        r = self.random.random()
        if depth <= 0 or r < 0.5:
            kind = self.random.randint(0, 5)
            if kind <= 1:
                return self.string()
            if kind <= 3:
                return self.number()
            return self.constant() if kind == 4 else {"type": self.random.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}
        if r < 0.75:
            return self.object(depth)
        if r < 0.87:
            return self.array(depth)
        if r < 0.95:
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randint(2, 3))]}
        if r < 0.97:
            return {"allOf": [self.object(depth), {"title": "t"}]}
        name = f"n{len(self.defs)}"
        self.defs[name] = None
        inner = self.object(depth)
        inner["properties"]["next"] = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
        self.defs[name] = inner
        return {"$ref": f"#/$defs/{name}"}

    def make(self):
        s = self.object(3) if self.random.random() < 0.8 else self.schema(3)
        return {**s, "$defs": self.defs} if self.defs else s


def make(count):
    return [Maker(i).make() for i in range(count)]


def attacks():
    """Schemas that cost much to who expands them, by name; each must be refused."""
    def chain(key, k):
        defs = {f"a{i}": {key: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(k)}
        return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{k}": {"type": "null"}}}

    def nested(k, inner):
        for _ in range(k):
            inner = {"items": inner}
        return inner

    return {
        "anyOf by $ref, 2^30": chain("anyOf", 30),
        "anyOf in allOf, 2^24": {"allOf": [{"anyOf": [{"minimum": k}, {"maximum": k}]} for k in range(24)]},
        "maxLength 10^9": {"type": "string", "maxLength": 10**9},
        "minLength 10^9": {"type": "string", "minLength": 10**9},
        "maxLength 10^6 and a pattern": {"type": "string", "pattern": "^a*b", "maxLength": 10**6},
        "(a|a)*b": {"type": "string", "pattern": "(a|a)*b"},
        "(a|b)*a(a|b){24}$": {"type": "string", "pattern": "(a|b)*a(a|b){24}$"},
        "((a{100}){100}){100}": {"type": "string", "pattern": "((a{100}){100}){100}"},
        "(x+x+)+y, minLength 10^5": {"type": "string", "pattern": "(x+x+)+y", "minLength": 10**5},
        "10^5 values of enum": {"enum": list(range(10**5))},
        "10^5 texts of enum": {"enum": [f"v{i}" for i in range(10**5)]},
        "5,000 levels": nested(500, {}),  # as many as Python's own writer takes; made deeper by who sends it
        "$ref to itself": {"$ref": "#"},
        "$ref in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "3,000 properties that overlap": {"type": "object", "patternProperties": {f"a{i}": {} for i in range(3000)}},
        "1,500 branches of oneOf": {"oneOf": [{"type": "object", "properties": {"k": {"const": i}}} for i in range(1500)]},
        "maxItems 10^9": {"type": "array", "maxItems": 10**9},
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, schema in enumerate(make(int(sys.argv[2]) if len(sys.argv) > 2 else 2000)):
        (folder / f"{number:04}.json").write_text(json.dumps(schema, ensure_ascii=False), encoding="utf-8")
