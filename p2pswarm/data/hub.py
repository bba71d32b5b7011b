"""Files of the Hugging Face hub, of models and of data sets: whole, or by ranges of bytes.

A name is pinned to a commit first, so that every member of a run reads the same files. The library
`huggingface_hub` says where the hub is and who asks (HF_ENDPOINT, HF_TOKEN), keeps small files
(HF_HOME), and is told to stay silent by HF_HUB_OFFLINE. A file that it has whole is not asked for.

Units:   bytes; seconds where a name ends so.
"""

import importlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from p2pswarm.base.errors import SwarmError, Unusable, missing_extra, one_line
from p2pswarm.settings.limits import COMMIT, hub_name

LIBRARY = "huggingface_hub"
MODEL, DATASET = "model", "dataset"
NOUNS = {MODEL: "model", DATASET: "data set"}
ENDPOINT = "HF_ENDPOINT"
NEWEST = "main"
SILENCE_S = 20.0  # of a hub that is asked, or that sends: people wait at a prompt for the answer
PAUSES_S = (0.5, 2.0, 8.0, 30.0)  # before a range is asked for again, if not a byte of it came
REASON_CHARS_MAX = 200  # of what others' code says, in our one line
FOUND, PART_OF_IT = 200, 206
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # what a server says that is busy or ill
RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A model or a data set of the hub at one commit."""

    name: str
    commit: str
    kind: str = MODEL

    def __str__(self) -> str:
        return f"{self.name}@{self.commit}"


def pinned_file(text: str, file: str, bytes_max: int, instead: str) -> tuple[Pinned, Path]:
    """The commit that NAME or NAME@REVISION means now, and a file of it, downloaded whole.

    `instead`: what the user can do without the hub. A hub that is not reached, or is not to be
    asked, gives way to what the library has kept of that revision.
    """
    found = hub_name(text)
    assert found is not None, "settings are checked"
    name, revision = found
    revision = revision or NEWEST
    kept = library().try_to_load_from_cache(name, file, revision=revision)
    if isinstance(kept, str) and COMMIT.fullmatch(revision):
        return Pinned(name, revision), Path(kept)
    try:
        path = _downloaded(name, (revision, file), bytes_max, (text, instead))
    except HubSilent:
        if not isinstance(kept, str):
            raise
        path = Path(kept)
    return Pinned(name, path.parent.name), path  # as it lies in the library's cache


class HubSilent(Unusable):
    """The hub was not reached, or says that it cannot answer now."""


class HubForbidden(HubSilent):
    """The hub must not be asked."""


def commit_of(name: str, revision: str, kind: str, instead: str) -> str:
    """The commit that a revision is now."""
    with asking(name + (f"@{revision}" if revision else ""), "its newest commit", instead, kind):
        found = _api().repo_info(
            name,
            repo_type=kind,
            revision=revision or NEWEST,
            timeout=SILENCE_S,
            expand=["sha"],
        )
        if not isinstance(found.sha, str) or not COMMIT.fullmatch(found.sha):
            raise Unusable(f"{name}: {_place()} names no commit, as the hub does: {instead}")
    return found.sha


class HubFile(NamedTuple):
    """A file of the hub."""

    path: str
    """Its name in the repository, with folders."""
    size_bytes: int


def listed(
    repository: Pinned, folder: str, most: int, instead: str, *, deep: bool = True
) -> list[HubFile]:
    """All files below a folder, or of the repository; NoSuchFile without such a folder.

    `deep`: also those of folders in it. Unusable if more than `most` files and folders are there.
    """
    found, count = list[HubFile](), 0
    with asking(str(repository), folder or "its list of files", instead, repository.kind):
        for entry in _api().list_repo_tree(
            repository.name,
            path_in_repo=folder or None,
            recursive=deep,
            revision=repository.commit,
            repo_type=repository.kind,
        ):
            count += 1
            if count > most:
                raise Unusable(
                    f"{repository}: has more than {most:,} files: name those of one folder, as "
                    f"/data/*.parquet behind the name, or {instead}"
                )
            if isinstance(entry, library().hf_api.RepoFile):
                there = entry.lfs or entry  # a file of Git LFS is there as it is, not its pointer
                found.append(HubFile(str(entry.path), int(there.size)))
    return found


def whole_file(
    repository: Pinned, file: HubFile, instead: str, pauses_s: tuple[float, ...] = PAUSES_S
) -> Path:
    """Download a file of any size whole, unless it is here; the library takes up what broke off."""
    if (kept := kept_file(repository, file.path)) is not None:
        return kept
    left_s = iter(pauses_s)
    while True:
        try:
            return _downloaded(
                repository.name,
                (repository.commit, file.path),
                file.size_bytes,
                (str(repository), instead),
                repository.kind,
            )
        except HubSilent as error:
            pause_s = None if isinstance(error, HubForbidden) else next(left_s, None)
            if pause_s is None:
                raise
            time.sleep(pause_s)


def cache_folder(name: str, kind: str) -> Path:
    """The folder of a repository in the library's cache; it may not be there yet."""
    part = library().file_download.repo_folder_name(repo_id=name, repo_type=kind)
    return Path(library().constants.HF_HUB_CACHE) / str(part)


def kept_file(model: Pinned, file: str) -> Path | None:
    """A file that the library's cache on this machine has whole."""
    found = library().try_to_load_from_cache(
        model.name, file, revision=model.commit, repo_type=model.kind
    )
    return Path(found) if isinstance(found, str) else None


def small_file(model: Pinned, file: str, bytes_max: int, instead: str) -> Path | None:
    """Download a file whole, unless it is here; None if the model has none of that name."""
    if (kept := kept_file(model, file)) is not None:
        return kept
    try:
        what, said = (model.commit, file), (str(model), instead)
        return _downloaded(model.name, what, bytes_max, said, model.kind)
    except NoSuchFile:
        return None


def file_bytes(model: Pinned, file: str, instead: str) -> int:
    """The size of a file, of which nothing is downloaded."""
    with asking(str(model), file, instead, model.kind):
        size = _metadata(model.name, model.commit, file, model.kind).size
    if size is None:
        raise Unusable(f"{model}: {_place()} does not say how long {file} is: {instead}")
    return int(size)


class NoSuchFile(Unusable):
    """The model is there and has no such file."""


def ranged(
    model: Pinned,
    file: str,
    span: tuple[int, int],
    instead: str,
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> Iterator[bytes]:
    """The bytes span[0]..span[1]-1 of a file, in chunks.

    A connection that breaks is followed by another one, which goes on there.
    """
    start, stop = span
    left_s = iter(pauses_s)
    while start < stop:
        before = start
        try:
            with asking(str(model), file, instead, model.kind):
                for chunk in _request(model, file, (start, stop), instead):
                    start += len(chunk)
                    yield chunk
        except HubSilent as error:
            if start > before:
                left_s = iter(pauses_s)
                continue
            pause_s = None if isinstance(error, HubForbidden) else next(left_s, None)
            if pause_s is None:
                raise
            time.sleep(pause_s)


def _request(model: Pinned, file: str, span: tuple[int, int], instead: str) -> Iterator[bytes]:
    """One request; it may give fewer bytes than were asked for, and never others."""
    start, stop = span
    url = library().hf_hub_url(
        model.name, file, revision=model.commit, repo_type=model.kind, endpoint=_endpoint()
    )
    headers = library().utils.build_hf_headers()
    headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    asked = library().get_session().stream("GET", url, headers=headers, timeout=SILENCE_S)
    with asked as response:
        if response.status_code == FOUND:
            raise Unusable(f"{model}: {_place()} gives {file} whole and not by ranges: {instead}")
        library().utils.hf_raise_for_status(response)
        said = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code != PART_OF_IT or said is None or int(said[1]) != start:
            raise Unusable(f"{model}: {_place()} gives other bytes of {file} than asked: {instead}")
        left = stop - start
        for chunk in response.iter_raw():
            if len(chunk) > left:
                raise Unusable(f"{model}: {_place()} gives more of {file} than asked: {instead}")
            left -= len(chunk)
            yield chunk
    if left:
        raise HubSilent(f"{model}: {_place()} sent {left:,} bytes too few of {file}: {instead}")


def _downloaded(
    name: str, what: tuple[str, str], bytes_max: int, said: tuple[str, str], kind: str = MODEL
) -> Path:
    """A file, whole, in the library's cache; `what`: revision and file, `said`: for errors."""
    (revision, file), (text, instead) = what, said
    with asking(text, file, instead, kind):
        found = _metadata(name, revision, file, kind)
        if found.commit_hash is None or not COMMIT.fullmatch(found.commit_hash):
            raise Unusable(f"{text}: {_place()} names no commit, as the hub does: {instead}")
        if found.size is None or found.size > bytes_max:
            raise Unusable(
                f"{text}: {file} has {found.size} bytes, {bytes_max} are allowed: {instead}"
            )
        path = library().hf_hub_download(
            name, file, revision=revision, repo_type=kind, endpoint=_endpoint()
        )
    return Path(path)


@lru_cache(maxsize=1)
def library() -> ModuleType:
    """The module, quiet; Unusable where it is not installed."""
    try:
        found = importlib.import_module(LIBRARY)
    except ImportError as error:
        raise missing_extra("a name of the hub needs huggingface_hub", "hf") from error
    for part in ("constants", "errors", "file_download", "hf_api", "utils"):
        importlib.import_module(f"{LIBRARY}.{part}")
    found.utils.logging.set_verbosity_error()  # what fails is told by us, in one line
    found.utils.disable_progress_bars()
    return found


@contextmanager
def asking(what: str, file: str, instead: str, kind: str = MODEL) -> Iterator[None]:
    """The library's errors, and the network's, as ours."""
    errors: Any = library().errors
    try:
        yield
    except errors.GatedRepoError as error:
        raise Unusable(
            f"{what} is gated: accept its terms on its page and set HF_TOKEN, or {instead}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise Unusable(
            f"{what}: {_place()} has no such {NOUNS[kind]}, or HF_TOKEN may not read it: check the "
            f"name, or {instead}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise Unusable(f"{what}: there is no such revision: name another, or {instead}") from error
    except errors.RemoteEntryNotFoundError as error:
        raise NoSuchFile(f"{what} has no {file}: {instead}") from error
    except errors.OfflineModeIsEnabled as error:
        raise HubForbidden(
            f"{what}: {file} is not kept here, and HF_HUB_OFFLINE forbids to ask the hub: "
            f"unset it, or {instead}"
        ) from error
    except errors.HfHubHTTPError as error:
        passing = error.response.status_code in PASSING
        raise (HubSilent if passing else Unusable)(
            f"{what}: {_place()} does not give {file} "
            f"({one_line(error, REASON_CHARS_MAX)}): {instead}"
        ) from error
    except (errors.HTTPError, errors.HFValidationError, errors.XetDownloadError, OSError) as error:
        raise HubSilent(
            f"{what}: {_place()} cannot be reached ({one_line(error, REASON_CHARS_MAX)}): {instead}"
        ) from error
    except SwarmError:
        raise
    except Exception as error:  # the library reads answers of whoever answers there
        raise Unusable(
            f"{what}: {_place()} answers for {file} as no hub does "
            f"({one_line(error, REASON_CHARS_MAX)}): {instead}"
        ) from error


def _metadata(name: str, revision: str, file: str, kind: str) -> Any:
    url = library().hf_hub_url(name, file, revision=revision, repo_type=kind, endpoint=_endpoint())
    return library().get_hf_file_metadata(url, timeout=SILENCE_S, endpoint=_endpoint())


def _api() -> Any:
    return library().HfApi(endpoint=_endpoint())


def _endpoint() -> str | None:
    """Return where the hub is; None: where the library says."""
    return os.environ.get(ENDPOINT, "").rstrip("/") or None


def _place() -> str:
    return _endpoint() or "the hub"
