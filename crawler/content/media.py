"""What a page shows or links to beside text: pictures, sound, films, documents, archives, programs.

Told by the element or by the ending of the file's name; nothing is fetched for it. A file counts once, however often
the page has it; so does a picture of which only a smaller one is shown and a larger one linked, as two files.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawler.content.html import Links

_ENDINGS = {
    "image": "jpg jpeg jpe jfif png gif webp avif heic svg svgz bmp ico tif tiff psd",
    "audio": "mp3 m4a aac ogg oga opus wav flac wma mid midi ra ram aif aiff au",
    "video": "mp4 m4v webm ogv mov avi mkv mpg mpeg mpe wmv asf asx flv swf 3gp rm rmvb m3u8",
    "document": "pdf doc docx docm rtf odt xls xlsx xlsm csv ods ppt pptx pps ppsx odp hwp hwpx ps eps tex djvu epub "
    "txt",
    "archive": "zip 7z rar gz tgz bz2 tbz xz zst tar lzh alz egg cab jar iso",
    "program": "exe msi apk ipa dmg pkg deb rpm appimage bin",
}
KIND_OF = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings.split()}
# Elements that show something, and where each says what; `object` and `embed` may show anything.
_SHOWN = {"img": "image", "video": "video", "audio": "audio", "embed": "", "object": ""}
# Elements that are looked at: a page may have a million.
_MOST_ELEMENTS = 5_000


def media(root: Any, found: Links) -> dict[str, int]:
    """Kind -> how many different files of it the page shows or links to; kinds that it has none of are left out."""
    files: dict[str, set[str]] = {}
    for kind, file in (*_shown(root), *_linked(found)):
        files.setdefault(kind, set()).add(file)
    return {kind: len(files[kind]) for kind in _ENDINGS if kind in files}


def kind_of(path: str) -> str | None:
    """The kind that the ending of a file's name tells, a query left out; None: the ending is no file's."""
    name = path.partition("?")[0]
    return KIND_OF.get(name[name.rfind(".") + 1 :].lower())


def shown(root: Any) -> Iterator[str]:
    """The files that the page shows, as written, each as often as it does."""
    return (file for _, file in _shown(root))


def _linked(found: Links) -> Iterator[tuple[str, str]]:
    for path in found.inside:
        if kind := kind_of(path):
            yield kind, path
    for site, paths in found.outside.items():
        for path in paths:
            if kind := kind_of(path):
                yield kind, site + path


def _shown(root: Any) -> Iterator[tuple[str, str]]:
    elements = root.iter(*_SHOWN) if root is not None else ()
    for number, element in enumerate(islice(elements, _MOST_ELEMENTS)):
        file = _file_of(element)
        kind = _SHOWN[element.tag] or kind_of(file) or element.get("type", "").partition("/")[0].lower()
        if kind in _ENDINGS:
            # A film without a file is fed by a script: each is one of its own.
            yield kind, file or f"#{number}"


def _file_of(element: Any) -> str:
    """The file that an element shows, as written; empty: it names none, or holds a placeholder."""
    for name in ("src", "data", "data-src"):
        file = element.get(name, "").strip()
        if file and file[:5].lower() != "data:":
            return str(file)
    source = next(element.iterchildren("source"), None)
    return "" if source is None else str(source.get("src", ""))
