"""What the compiled kernels take, against the committed budget; and that the module was built from this tree."""

import pytest
import resource_usage
import source_hash
from resource_usage import Usage

from jaxgemm import _core

NAIVE = "_ZN7jaxgemm40_GLOBAL__N__1ed5e288_8_naive_cu_9c44821412naive_kernelINS0_11Config32x32ELb1ELb0EEEvNS_12Glo\
balMatrixIfXT0_EEENS3_IfXT1_EEENS_8EpilogueENS_8TileGridElll"


@pytest.fixture(scope="module")
def measured():
    if resource_usage.find_tool("cuobjdump") is None:
        pytest.skip("cuobjdump is not installed")
    return resource_usage.measure(resource_usage.built_module())


def test_no_kernel_spills(measured):
    _, rows = measured
    assert rows
    assert [row for row in rows if row.stack_bytes] == []


def test_kernels_stay_within_their_budget(measured):
    compiler, rows = measured
    budget_compiler, budget = resource_usage.read_budget()
    if compiler != budget_compiler:
        pytest.skip(f"compiled by nvcc {compiler}, and the budget is for {budget_compiler}")
    assert resource_usage.compare(rows, budget) == []


def test_short_name():
    assert resource_usage.short_name(NAIVE) == "naive.cu: naive_kernel<Config32x32, true, false>"
    assert resource_usage.short_name("plain_c_kernel") == "plain_c_kernel"


def test_parse():
    text = f"arch = sm_80\n Function {NAIVE}:\n  REG:32 STACK:8 SHARED:16 LOCAL:0 CONSTANT[0]:480 TEXTURE:0\n"
    assert resource_usage.parse(text) == [Usage("naive.cu: naive_kernel<Config32x32, true, false>", "sm_80", 32, 16, 8)]
    with pytest.raises(ValueError, match="several kernels have one name"):
        resource_usage.parse(text + text)


def test_budget_file_round_trip(tmp_path):
    rows = [Usage("b", "sm_80", 32, 0, 0), Usage("a", "sm_90a", 64, 1024, 0)]
    path = tmp_path / "budget.json"
    resource_usage.write_budget("13.0.88", rows, path)
    assert resource_usage.read_budget(path) == ("13.0.88", sorted(rows))


@pytest.mark.parametrize(
    ("built", "sentence"),
    [
        (Usage("k", "sm_80", 33, 0, 0), "k on sm_80: registers 33, budget 32"),
        (Usage("k", "sm_80", 32, 8, 0), "k on sm_80: shared_bytes 8, budget 0"),
        (Usage("k", "sm_80", 32, 0, 8), "k on sm_80 has a stack of 8 bytes"),
    ],
)
def test_compare_finds(built, sentence):
    (found,) = resource_usage.compare([built], [Usage("k", "sm_80", 32, 0, 0)])
    assert found.startswith(sentence)


def test_compare_finds_unknown_and_missing_kernels_of_built_architectures():
    budget = [Usage("k", "sm_80", 32, 0, 0), Usage("k", "sm_90a", 32, 0, 0)]
    assert resource_usage.compare([Usage("k", "sm_80", 30, 0, 0)], budget) == []
    assert resource_usage.compare([Usage("new", "sm_80", 30, 0, 0)], budget) == [
        "new on sm_80 is not in the budget",
        "k on sm_80 is in the budget, but not in the module",
    ]


def test_module_was_built_from_this_tree():
    assert _core.source_hash() == source_hash.source_hash()


def test_source_hash_sees_names_and_contents(tmp_path):
    def write(name, text):
        path = tmp_path / "cuda" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return source_hash.source_hash(tmp_path)

    hashes = [write("a.cu", "1"), write("a.cu", "2"), write("kernels/a.cu", "2"), write("b.h", "")]
    assert len(set(hashes)) == 4
    assert write("notes.txt", "not a source") == hashes[-1]
