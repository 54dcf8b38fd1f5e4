"""An extension of griffe, which reads the docstrings for the API reference: Keras's own sections of a docstring."""

import re
import textwrap

import griffe

FIRST_ARGUMENT = re.compile(r"\n    [*\w, ]+: ")


class DocstringSections(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj, **kwargs):
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value)


def google_style(docstring):
    """Returns a docstring whose sections `Call arguments` and `Example` are those of Google's style of the same form.

    `Call arguments` that refers to another class instead of listing arguments stays a paragraph. `Example` is the
    last section; it may be indented or, as in Keras, not, and without prompts it is one block of code.
    """
    before, title, arguments = docstring.partition("\nCall arguments:")
    if title and FIRST_ARGUMENT.match(arguments):
        docstring = f"{before}\nOther Parameters: Call arguments:{arguments}"
    before, title, example = docstring.partition("\nExample:\n")
    if title:
        example = textwrap.dedent(example).strip("\n")
        if ">>>" not in example:
            example = f"```python\n{example}\n```"
        docstring = f"{before}\nExamples: Example:\n{textwrap.indent(example, '    ')}"
    return docstring
