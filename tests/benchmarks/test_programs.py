"""The programs that look at a run: a wrong folder ends them in one line."""

import pytest

from benchmarks.quality import ablation, ahead, lines


def test_a_folder_without_a_run_is_an_error_of_the_command_line(tmp_path, monkeypatch, capsys):
    for program in (ablation, ahead, lines):
        for folder, message in ((tmp_path / "none", "must be an existing folder"), (tmp_path, "must hold config.json")):
            monkeypatch.setattr("sys.argv", ["program", f"--workdir={folder}"])
            with pytest.raises(SystemExit, match="2"):
                program.main()
            assert f"error: argument --workdir: `workdir` {message}" in capsys.readouterr().err
