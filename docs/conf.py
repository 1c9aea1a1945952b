"""The documentation site; ``make site`` assembles its pages and calls Sphinx."""

from hardcase import __version__

project = "hardcase"
author = "The hardcase maintainers"
project_copyright = author
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"hardcase {release}"
html_show_sourcelink = False
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
suppress_warnings = ["myst.strikethrough"]
