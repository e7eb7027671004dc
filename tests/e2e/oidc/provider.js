// A certified OpenID Connect provider: node provider.js '{"port", "clients", "users"}'. Prints its issuer when it
// listens. Users log in with any password; the file `users` holds their claims, and is read at each login.
import { readFileSync } from "node:fs";
import Provider from "oidc-provider";

const settings = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${settings.port}`;
const provider = new Provider(issuer, {
  clients: settings.clients,
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups"],
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, ...JSON.parse(readFileSync(settings.users, "utf8"))[id] }),
  }),
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true } },
  cookies: { keys: ["a key for tests alone"] },
});
provider.listen(settings.port, "127.0.0.1", () => console.log(issuer));
