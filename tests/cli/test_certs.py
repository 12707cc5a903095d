def test_an_authority_and_certificates_in_three_commands(lab, place, fails):
    assert lab("certs", "init").exit_code == 0
    assert "certs/robot-01.pem" in lab("certs", "issue", "robot-01", "--role", "actor").output
    assert lab("certs", "issue", "learner", "--role", "learner", "--days", "30").exit_code == 0
    names = {path.name for path in (place / "certs").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("ca", "robot-01", "learner") for kind in ("pem", "key")}
    assert "certs/ca.pem exists and is not overwritten" in fails(lab("certs", "init"), 2)
    assert "unknown --role 'boss' (choices: actor, learner, operator, viewer)" in fails(
        lab("certs", "issue", "x", "--role", "boss"), 2
    )
    assert "lab certs init --dir nowhere" in fails(
        lab("certs", "issue", "x", "--role", "viewer", "--dir", "nowhere"), 2
    )
    assert lab("certs", "issue", "x", "--role", "viewer", "--days", "0").exit_code == 2
