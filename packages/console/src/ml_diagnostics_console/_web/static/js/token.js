// Exchanges the token in the URL's fragment for a cookie that scripts cannot read, and opens the page itself.

const NEEDED = "This server asks for a token: open the whole address that `mldiagnostics ui` printed.";
const WRONG = "The token in this address is not valid: `mldiagnostics ui` prints a new one at each start.";

async function exchange() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return NEEDED;
  const answer = await fetch("/api/token", { headers: { authorization: `Bearer ${token}` } });
  if (!answer.ok) return WRONG;
  location.replace(location.pathname + location.search);
  return "";
}

const message = await exchange().catch(() => "The server does not answer.");
if (message) document.getElementById("message").textContent = message;
document.documentElement.dataset.ready = "token";
