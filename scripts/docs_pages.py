"""Hook of mkdocs: the site has the paths of the repository, so that links hold on both."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.*", "benchmarks/**/*.md", "widthfold_onnx/**/*.py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take these pages of the repository, and the source that the glossary links to."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern))
    site = (str(ROOT), config.site_dir, config.use_directory_urls)
    return Files([*theme, *(File(path.as_posix(), *site) for path in paths)])
