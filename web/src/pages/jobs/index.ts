export { JobsPage } from "./page";
