import torch

from rl_lab.components.normalizer import RewardScaler, RunningNormalizer


def test_normalizer_is_the_identity_at_first_and_standardises_later():
    torch.manual_seed(0)
    normalizer, data = RunningNormalizer((3,), clip=5.0), torch.randn(1000, 3) * torch.tensor([1.0, 10.0, 0.1]) + 7.0
    assert torch.equal(normalizer(torch.ones(2, 3)), torch.ones(2, 3))
    for batch in data.split(300):
        normalizer.update(batch)
    torch.testing.assert_close(normalizer.mean, data.mean(0))
    torch.testing.assert_close(normalizer.var, data.var(0, correction=0))
    expected = (data - data.mean(0)) / data.std(0, correction=0)
    torch.testing.assert_close(normalizer(data), expected.clamp(-5, 5), rtol=1e-3, atol=1e-3)
    assert float(normalizer(torch.full((3,), 1e9)).max()) == 5.0


def test_normalizer_is_saved_with_its_counts():
    torch.manual_seed(0)
    first, second = RunningNormalizer((2,)), RunningNormalizer((2,))
    first.update(torch.randn(50, 2) * 3)
    second.load_state_dict(first.state_dict())
    more = torch.randn(20, 2)
    first.update(more)
    second.update(more)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert first.count == 70


def test_reward_scaler_follows_the_return_of_each_environment_across_rollouts():
    torch.manual_seed(0)
    rewards, dones = torch.randn(30, 2), torch.rand(30, 2) < 0.2
    scaler, running, returns = RewardScaler(2, gamma=0.9), torch.zeros(2), []
    for t in range(30):
        running = rewards[t] + 0.9 * running
        returns.append(running)
        running = running * ~dones[t]
    for part in (slice(0, 12), slice(12, 13), slice(13, 30)):
        scaler.update(rewards[part], dones[part])
    expected = torch.stack(returns)
    torch.testing.assert_close(scaler.statistics.var, expected.var(correction=0))
    torch.testing.assert_close(scaler.returns, running)
    torch.testing.assert_close(scaler(rewards), rewards / expected.std(correction=0))
