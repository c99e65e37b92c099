"""URLs that obstore reads in the place of fsspec, and those that stay with fsspec."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests import tensfiles as tf
from tests.fault_server import FaultHandler, FaultServer
from tests.opening import tensor_of
from tests.processes import succeeds_in_a_child
from tests.servers import S3Store
from xr_tensorfmt import SourceChangedError
from xr_tensorfmt.datasets.lazy_array import unwrapped
from xr_tensorfmt.sources.object_store import ObjectStore, store_of_url
from xr_tensorfmt.sources.places import locate_for_reading
from xr_tensorfmt.sources.remote import open_remote

VALUES = np.arange(6000.0).reshape(30, 200)
CONTENT = tf.version_0_9(VALUES)
URL = "s3://bucket/d/t.bin"
KEYS = {"key": "key", "secret": "secret"}
REGION = {"client_kwargs": {"region_name": "eu-west-1"}}
CONNECTION = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=a2V5;"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without files, and an environment without variables of stores."""
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def store_for(url: str, **options: Any) -> Any:
    """The store of obstore for a URL; None where there is none."""
    found = store_of_url(url, options, 7)
    return found and found[0].store


def source_of(tensor: xr.DataArray) -> AbstractFileSystem:
    return unwrapped(tensor.variable)[0].source.place.fs


@pytest.mark.parametrize(
    ("url", "options", "config"),
    [
        (URL, {**KEYS, **REGION}, {"region": "eu-west-1"}),
        (URL, {"anon": True, **REGION}, {"region": "eu-west-1", "skip_signature": "true"}),
        (
            "s3a://bucket/t",
            {**KEYS, "endpoint_url": "https://host/"},
            {"region": "us-east-1", "endpoint": "https://host"},
        ),
        (
            URL,
            {**KEYS, "client_kwargs": {"endpoint_url": "https://host", "region_name": "r"}},
            {"region": "r", "endpoint": "https://host"},
        ),
        (
            "az://bucket/t",
            {"account_name": "a", "account_key": "a2V5"},
            {"account_name": "a", "account_key": "a2V5"},
        ),
        (
            "abfs://bucket/t",
            {"account_name": "a", "sas_token": "?sv=1&sig=x"},
            {"account_name": "a", "sas_key": "sv=1&sig=x"},
        ),
        (
            "abfss://bucket/t",
            {"account_name": "a", "anon": True},
            {"account_name": "a", "skip_signature": "true"},
        ),
        (
            "az://bucket/t",
            {"connection_string": CONNECTION},
            {
                "account_name": "a",
                "account_key": "a2V5",
                "endpoint": "https://a.blob.core.windows.net",
            },
        ),
    ],
)
def test_a_store_is_made_of_the_words_of_fsspec(url: str, options: dict, config: dict) -> None:
    store = store_for(url, **options)
    assert {k: v for k, v in store.config.items() if not k.startswith(("bucket", "cont"))} == config
    assert store.retry_config["max_retries"] == 0
    assert store.client_options["read_timeout"] == "7s"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (URL, KEYS),  # no region
        (URL, {"anon": True}),
        (URL, {**REGION, "key": "key"}),
        (URL, {**REGION, "token": "token"}),
        (URL, REGION),  # no credentials are found
        (URL, {**KEYS, **REGION, "profile": "unknown"}),
        (URL, {**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}),
        (URL, {**KEYS, "client_kwargs": {"region_name": "eu-west-1", "verify": False}}),
        (URL, {**KEYS, **REGION, "requester_pays": True}),
        (URL, {**KEYS, **REGION, "use_ssl": False}),
        (URL, {**KEYS, **REGION, "config_kwargs": {"s3": {"addressing_style": "virtual"}}}),
        (URL, {"key": b"key", "secret": "secret", **REGION}),
        ("simplecache::s3://bucket/t", {**KEYS, **REGION}),
        ("s3://bucket/t::x", {**KEYS, **REGION}),
        ("s3://bucket/a//t", {**KEYS, **REGION}),
        ("s3://bucket/../t", {**KEYS, **REGION}),
        ("s3://bucket/t?versionId=1", {**KEYS, **REGION}),
        ("s3://bucket/100%25", {**KEYS, **REGION}),
        ("s3://bucket/t/", {**KEYS, **REGION}),
        ("s3://bucket--x-s3/t", {**KEYS, **REGION}),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/a/t", {**KEYS, **REGION}),
        ("az://bucket/t", {"account_name": "a"}),
        ("az://bucket/t", {"account_key": "a2V5"}),
        ("az://bucket/t", {"account_name": "a", "account_key": "a2V5", "sas_token": "x"}),
        ("az://bucket/t", {"connection_string": "SharedAccessSignature=x;AccountName=a"}),
        ("abfs://container@account.dfs.core.windows.net/t", {"account_key": "a2V5"}),
        ("az://account.blob.core.windows.net/c/t", {"account_name": "a", "anon": True}),
        ("gs://bucket/t", {"token": "anon"}),
        ("https://host/t", {}),
        ("memory://t", {}),
    ],
    ids=str,
)
def test_what_is_not_known_stays_with_fsspec(url: str, options: dict) -> None:
    assert store_for(url, **options) is None


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_CA_BUNDLE"])
def test_variables_that_obstore_or_botocore_would_read_stay_with_fsspec(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://elsewhere")
    assert store_for(URL, **KEYS, **REGION) is None
    assert store_for("az://bucket/t", account_name="a", anon=True)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "1")
    assert store_for("az://another/t", account_name="a", anon=True) is None


def test_a_setting_of_fsspec_stays_with_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"requester_pays": True})
    assert store_for(URL, **KEYS, **REGION) is None


def test_a_class_that_was_registered_with_fsspec_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", MemoryFileSystem)
    assert store_for(URL, **KEYS, **REGION) is None


@pytest.mark.parametrize("module", ["obstore.store", "botocore.session"])
def test_without_the_package_fsspec_is_used(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert (store_for(URL, **KEYS, **REGION) is None) == (module == "obstore.store")
    assert store_for(URL, **REGION) is None


def profile(home: Path, more: str = "") -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(f"[profile work]\nregion = eu-west-3\n{more}")
    (home / ".aws" / "credentials").write_text(
        "[work]\naws_access_key_id = WORK\naws_secret_access_key = of-work\n"
    )


@pytest.mark.parametrize("how", ["option", "variable"])
def test_profiles_give_region_and_credentials(
    home: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    profile(home)
    if how == "variable":
        monkeypatch.setenv("AWS_PROFILE", "work")
    store = store_for(URL, **({"profile": "work"} if how == "option" else {}))
    assert store.config["region"] == "eu-west-3"
    provider = store.credential_provider
    assert b"of-work" not in pickle.dumps(provider)
    for each in (provider, pickle.loads(pickle.dumps(provider))):
        assert each() == {
            "access_key_id": "WORK",
            "secret_access_key": "of-work",
            "token": None,
            "expires_at": None,
        }


def test_a_profile_with_other_settings_stays_with_fsspec(home: Path) -> None:
    profile(home, "s3 =\n  addressing_style = virtual\n")
    assert store_for(URL, profile="work") is None
    assert store_for(URL, profile="work", **KEYS) is None


def test_credentials_that_end_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    from botocore import session  # noqa: PLC0415
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415

    keys = map(str, itertools.count())

    def fetched() -> dict[str, str]:
        end = datetime.now(UTC) + timedelta(seconds=1)
        named = {"access_key": next(keys), "secret_key": "s", "token": "t"}
        return {**named, "expiry_time": end.isoformat()}

    monkeypatch.setattr(
        session.Session,
        "get_credentials",
        lambda _: RefreshableCredentials.create_from_metadata(fetched(), fetched, "test"),
    )
    provider = store_for(URL).credential_provider
    before, after = provider(), provider()
    assert int(after["access_key_id"]) > int(before["access_key_id"])
    left = after["expires_at"] - datetime.now(UTC)
    assert timedelta(minutes=5) < left <= timedelta(minutes=10)


def test_credentials_that_cannot_be_had_stay_with_fsspec(home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-3\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n"
        "[sso-session s]\nsso_start_url = https://host\nsso_region = eu-west-3\n"
    )
    assert store_for(URL) is None  # nobody has signed on
    (home / ".aws" / "config").write_text("[default\n")
    assert store_for("s3://another/t", **KEYS, **REGION) is None


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer().running() as store:
        store.put("bucket/d/t.bin", CONTENT)
        yield store


def sent_to(server: FaultServer) -> list[dict[str, str]]:
    """The headers of each request from now on."""
    sent: list[dict[str, str]] = []
    server.always = lambda handler: bool(sent.append(dict(handler.headers))) or True
    return sent


def is_obstore(headers: dict[str, str]) -> bool:
    return "object_store" in headers.get("user-agent", "")


def test_requests_are_signed_with_what_was_stated_alone(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    sent = sent_to(server)
    options = {**KEYS, **REGION, "endpoint_url": server.url}
    np.testing.assert_array_equal(tensor_of(URL, storage_options=options), VALUES)
    assert all(map(is_obstore, sent))
    assert all("Credential=key/" in each["authorization"] for each in sent)
    assert all("/eu-west-1/s3/" in each["authorization"] for each in sent)
    assert not any("x-amz-security-token" in each for each in sent)
    sent.clear()
    tensor_of(URL, storage_options={**options, "token": "session"})
    assert {each["x-amz-security-token"] for each in sent} == {"session"}


def test_requests_are_signed_with_what_botocore_finds(server: FaultServer, home: Path) -> None:
    profile(home)
    sent = sent_to(server)
    options = {"profile": "work", "endpoint_url": server.url}
    np.testing.assert_array_equal(tensor_of(URL, storage_options=options), VALUES)
    assert all(map(is_obstore, sent))
    assert all("Credential=WORK/" in each["authorization"] for each in sent)
    assert all("/eu-west-3/s3/" in each["authorization"] for each in sent)


def test_nothing_is_signed_without_credentials(server: FaultServer, home: Path) -> None:
    profile(home)
    sent = sent_to(server)
    options = {"profile": "work", "endpoint_url": server.url, "anon": True}
    np.testing.assert_array_equal(tensor_of(URL, storage_options=options), VALUES)
    assert all(map(is_obstore, sent))
    assert not any("authorization" in each for each in sent)


def test_a_dataset_opened_by_url_is_the_same_by_both(s3: S3Store) -> None:
    url = s3.put("d/t.bin", CONTENT)
    for options, kind in ((s3.options, ObjectStore), (s3.by_s3fs.options, AbstractFileSystem)):
        dataset = xr.open_dataset(url, engine="tensorfmt", storage_options=options)
        assert isinstance(source_of(dataset.tensor), kind)
        assert dataset.encoding["source"] == url
        pickled = pickle.dumps(dataset)
        assert len(pickled) < 4000
        np.testing.assert_array_equal(pickle.loads(pickled).tensor, VALUES)
    by_system = tensor_of("bucket/d/t.bin", fs=fsspec.filesystem("s3", **s3.options))
    assert isinstance(source_of(by_system), AbstractFileSystem)


def test_the_version_of_both_is_the_same(s3: S3Store) -> None:
    url = s3.put("same.bin", CONTENT)
    tags = {
        open_remote(locate_for_reading(url, options, None, 7))[0].version.etag
        for options in (s3.options, s3.by_s3fs.options)
    }
    assert len(tags) == 1


def test_equal_urls_share_a_store_and_its_limit(s3: S3Store) -> None:
    places = [locate_for_reading(f"s3://bucket/{name}", dict(s3.options), None, 7) for name in "ab"]
    assert places[0].fs is places[1].fs
    assert pickle.loads(pickle.dumps(places[0].fs)) is places[0].fs
    assert locate_for_reading("s3://other/a", s3.options, None, 7).fs is not places[0].fs


def total_of(tensor: xr.DataArray) -> float:
    return float(tensor.sum())


def test_a_spawned_process_reads_for_itself(s3: S3Store) -> None:
    tensor = tensor_of(s3.put("t.bin", CONTENT), storage_options=s3.options, chunks={})
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(total_of, (tensor,)) == VALUES.sum()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_reads_by_fsspec(s3: S3Store) -> None:
    url = s3.put("forked.bin", CONTENT)
    tensor = tensor_of(url, storage_options=s3.options)
    assert tensor[3, 4] == VALUES[3, 4]
    again = pickle.dumps(tensor)
    assert succeeds_in_a_child(lambda: bool((tensor == VALUES).all()))
    assert succeeds_in_a_child(lambda: bool((pickle.loads(again) == VALUES).all()))
    assert succeeds_in_a_child(
        lambda: bool((tensor_of(url, storage_options=s3.options) == VALUES).all())
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_store_that_was_passed_does_not_hang_in_a_forked_process() -> None:
    from obstore.store import MemoryStore  # noqa: PLC0415

    store = MemoryStore()
    store.put("t.bin", CONTENT)
    tensor = tensor_of("t.bin", fs=store)

    def says_why() -> bool:
        try:
            tensor.load()
        except RuntimeError as error:
            return "forked" in str(error)
        return False

    assert succeeds_in_a_child(says_why)


def test_what_obstore_cannot_open_is_opened_by_fsspec_and_then_not_tried_again(
    server: FaultServer,
) -> None:
    sent: list[bool] = []

    def refuse(handler: FaultHandler) -> bool:
        sent.append(is_obstore(dict(handler.headers)))
        if sent[-1]:
            handler.answer(400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>")
        return not sent[-1]

    server.always = refuse
    options = {**KEYS, "endpoint_url": server.url}
    np.testing.assert_array_equal(tensor_of(URL, storage_options=options), VALUES)
    assert any(sent)
    sent.clear()
    tensor_of(URL, storage_options=options)
    assert sent
    assert not any(sent)


def error_of(url: str, options: dict[str, Any]) -> Exception:
    with pytest.raises(OSError, match="s3://") as caught:
        tensor_of(url, storage_options=options)
    return caught.value


def test_errors_of_opening_are_those_of_fsspec(s3: S3Store, monkeypatch: Any) -> None:
    s3.put("here/t.bin", CONTENT)
    for url in ("s3://bucket/gone.bin", "s3://nowhere/t.bin", "s3://bucket/here"):
        by_url, by_fsspec = (error_of(url, each.options) for each in (s3, s3.by_s3fs))
        assert (type(by_url), str(by_url)) == (type(by_fsspec), str(by_fsspec))
        assert store_of_url(url, s3.options, 60)[0].is_refused is False
    monkeypatch.setattr(s3, "refused", lambda environ: True)
    options = {**s3.options, "secret": "do-not-show-this"}
    refused = error_of("s3://bucket/here/t.bin", options)
    assert type(refused) is PermissionError
    assert "do-not-show-this" not in repr((refused, refused.__context__, refused.__cause__))


def test_errors_without_s3fs_are_those_of_obstore(s3: S3Store, monkeypatch: Any) -> None:
    s3.put("t.bin", CONTENT)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    np.testing.assert_array_equal(
        tensor_of("s3://bucket/t.bin", storage_options=s3.options), VALUES
    )
    missing = error_of("s3://bucket/gone.bin", s3.options)
    assert type(missing) is FileNotFoundError


def test_a_replaced_object_is_noticed_by_a_dask_graph(s3: S3Store) -> None:
    url = s3.put("replaced.bin", CONTENT)
    before = tensor_of(url, storage_options=s3.options, chunks={})
    s3.put("replaced.bin", tf.version_0_9(VALUES + 1))
    with pytest.raises(SourceChangedError, match="replaced since it was opened"):
        before.compute()


def test_options_with_the_limit_of_requests_do_not_matter(s3: S3Store) -> None:
    url = s3.put("limit.bin", CONTENT)
    tensor = tensor_of(url, storage_options={**s3.options, "timeout": 9})
    source = source_of(tensor)
    assert isinstance(source, ObjectStore)
    assert source.store.client_options["read_timeout"] == "9s"
    assert json.loads(json.dumps(s3.options)) == s3.options
