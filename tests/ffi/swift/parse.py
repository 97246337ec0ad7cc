"""Reads Swift sources by tree-sitter's grammar and prints where they are not Swift: parse.py FILE..."""

import pathlib
import sys

import tree_sitter
import tree_sitter_swift


def wrong(node):
    if node.type == "ERROR" or node.is_missing:
        yield node
    for child in node.children:
        yield from wrong(child)


parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
failed = False
for path in sys.argv[1:]:
    for node in wrong(parser.parse(pathlib.Path(path).read_bytes()).root_node):
        failed = True
        row, column = node.start_point
        print(f"{path}:{row + 1}:{column + 1}: not Swift")
sys.exit(failed)
