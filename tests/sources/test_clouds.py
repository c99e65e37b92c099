"""Reading and writing emulators of Google Cloud Storage and Azure."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tests import cc4sfiles, clouds
from tests import tensfiles as tf
from tests.opening import open_lazily
from xr_tensorfmt import SourceChangedError, to_file

pytestmark = [
    # Warnings of libraries below the file systems.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

VALUES = np.arange(6000.0).reshape(20, 300)


@pytest.fixture(scope="module", params=["google", "azure"])
def cloud(request: pytest.FixtureRequest) -> Iterator[clouds.Cloud]:
    with getattr(clouds, f"run_{request.param}")() as store:
        yield store


def get_options(cloud: clouds.Cloud) -> dict[str, Any]:
    return {"storage_options": cloud.options}


def make_dataset() -> xr.Dataset:
    """Return a Dataset that is uploaded in several parts."""
    values = np.random.default_rng(0).random((4200, 1000), dtype="f4")
    return xr.Dataset({"w": (("x", "y"), values)}, {"x": np.arange(4200, dtype="i4")})


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_values_are_read(cloud: clouds.Cloud, chunks: Any) -> None:
    url = cloud.put("a.tens", tf.make_0_9(VALUES))
    limit = {} if chunks is None else {"chunk_bytes": 5000}
    tensor = open_lazily(url, chunks=chunks, **limit, **get_options(cloud)).tensor
    np.testing.assert_array_equal(tensor[3, 5:9], VALUES[3, 5:9])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tensor)), VALUES)


def test_sibling_files_are_found(cloud: clouds.Cloud) -> None:
    values = cc4sfiles.make_values((5, 4))
    cloud.put("c/x.elements", cc4sfiles.pack_binary(values))
    url = cloud.put("c/x.yaml", cc4sfiles.format_yaml(values.shape).encode())
    np.testing.assert_array_equal(open_lazily(url, **get_options(cloud)).x, values)


@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_replaced_object_is_detected(cloud: clouds.Cloud, chunks: Any) -> None:
    url = cloud.put("replaced.tens", tf.make_0_9(VALUES))
    before = open_lazily(url, chunks=chunks, **get_options(cloud)).tensor
    assert before[0, 0] == 0
    cloud.put("replaced.tens", tf.make_0_9(VALUES + 1))
    with pytest.raises(SourceChangedError, match="it has been replaced since it was opened"):
        before[1].compute()
    np.testing.assert_array_equal(
        open_lazily(url, chunks=chunks, **get_options(cloud)).tensor, VALUES + 1
    )


def test_replaced_object_has_another_name_in_dask_if_chunked_later(cloud: clouds.Cloud) -> None:
    url = cloud.put("named.tens", tf.make_0_9(VALUES))
    before = open_lazily(url, **get_options(cloud)).tensor.chunk().data.name
    assert open_lazily(url, **get_options(cloud)).tensor.chunk().data.name == before
    cloud.put("named.tens", tf.make_0_9(VALUES + 1))
    assert open_lazily(url, **get_options(cloud)).tensor.chunk().data.name != before


def test_deleted_object_is_missing(cloud: clouds.Cloud) -> None:
    url = cloud.put("deleted.tens", tf.make_0_9(VALUES))
    tensor = open_lazily(url, **get_options(cloud)).tensor
    cloud.fs.rm("bucket/deleted.tens")
    with pytest.raises(FileNotFoundError, match=url):
        tensor.load()


@pytest.mark.parametrize("path", ["bucket/nowhere.tens", "nowhere/a.tens"])
def test_missing_object_is_no_file(cloud: clouds.Cloud, path: str) -> None:
    url = f"{cloud.scheme}://{path}"
    with pytest.raises(FileNotFoundError) as caught:
        open_lazily(url, **get_options(cloud))
    assert caught.value.filename == url
    assert "127.0.0.1" not in str(caught.value)


def test_wrong_credentials_are_permission_error_without_secrets(cloud: clouds.Cloud) -> None:
    url = cloud.put("secret.tens", tf.make_0_9(VALUES))
    wrong = {"storage_options": cloud.wrong}
    with pytest.raises(PermissionError, match=r"the server answered 403 .+") as reading:
        open_lazily(url, **wrong)
    with pytest.raises(PermissionError, match=r"the server answered 403 .+as before") as writing:
        to_file(make_dataset().isel(x=slice(0, 3)), cloud.url("refused.mag"), **wrong)
    for caught in (reading, writing):
        assert cloud.secret not in str(caught.value)
        assert "\n" not in str(caught.value)
        pickle.loads(pickle.dumps(caught.value))
    assert "refused.mag" not in cloud.names()


@pytest.mark.parametrize("chunks", [{"x": 500}, {"y": 300}], ids=str)
def test_dataset_is_written_and_round_trips(cloud: clouds.Cloud, chunks: Any) -> None:
    for number in range(2):  # the second replaces the first
        data = make_dataset() + number
        to_file(data.chunk(chunks), cloud.url("w.mag"), **get_options(cloud))
        xr.testing.assert_identical(
            open_lazily(cloud.url("w.mag"), **get_options(cloud)).load(), data
        )


def test_object_that_exists_is_kept(cloud: clouds.Cloud) -> None:
    small = make_dataset().isel(x=slice(0, 3))
    to_file(small, cloud.url("kept.mag"), mode="x", **get_options(cloud))
    with pytest.raises(FileExistsError, match="exists already"):
        to_file(small + 1, cloud.url("kept.mag"), mode="x", **get_options(cloud))
    xr.testing.assert_identical(
        open_lazily(cloud.url("kept.mag"), **get_options(cloud)).load(), small
    )


def test_failed_write_leaves_old_object(cloud: clouds.Cloud) -> None:
    to_file(make_dataset(), cloud.url("before.mag"), **get_options(cloud))
    names = cloud.names()

    def fail_late(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        if block_info[0]["chunk-location"][0] == 9:
            raise ZeroDivisionError
        return block

    values = da.ones((4200, 1000), chunks=(400, 1000), dtype="f4")
    failing = make_dataset().assign(w=(("x", "y"), values.map_blocks(fail_late, dtype="f4")))
    for name in ("before.mag", "new.mag"):
        with pytest.raises(ZeroDivisionError):
            to_file(failing, cloud.url(name), **get_options(cloud))
    assert cloud.names() == names
    xr.testing.assert_identical(
        open_lazily(cloud.url("before.mag"), **get_options(cloud)).load(), make_dataset()
    )


def test_container_of_azure_is_read_by_obstore() -> None:
    with clouds.run_azure() as cloud:
        url = cloud.put("o/a.tens", tf.make_0_9(VALUES))
        for chunks in (None, {}):
            tensor = open_lazily("bucket/o/a.tens", fs=cloud.of_obstore(), chunks=chunks).tensor
            np.testing.assert_array_equal(tensor[3, 5:9], VALUES[3, 5:9])
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(tensor)), VALUES)
        with pytest.raises(FileNotFoundError) as missing:
            open_lazily("bucket/gone.tens", fs=cloud.of_obstore())
        assert missing.value.filename == cloud.url("gone.tens")
        with pytest.raises(PermissionError, match="403") as refused:
            open_lazily("bucket/o/a.tens", fs=cloud.of_obstore(cloud.secret))
        assert cloud.secret not in str(refused.value)
        assert refused.value.filename == url
        tensor = open_lazily("bucket/o/a.tens", fs=cloud.of_obstore()).tensor
        cloud.put("o/a.tens", tf.make_0_9(VALUES + 1))
        with pytest.raises(SourceChangedError, match="it has been replaced since it was opened"):
            tensor.load()
